/* seam.h - the cut between the daemons' discovery (cluster/etcd.c, etcd_digest.c, embedded_server.c, embedded_client.c) and what it stands on.
 * Those files are compiled once more for the simulator with this header in front (CMakeLists.txt), so that their clock, timers, random
 * numbers, streams, log and etcd client are the simulator's (env.c, etcd_port.c), and their own names do not meet those of the daemons'
 * library in a program that links both. The code that runs is the daemons', line for line.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SIM_SEAM_H
#define KVS_SIM_SEAM_H

/* what they call */
#define kvs_now_us sim_env_now_us
#define kvs_random_u64 sim_env_random_u64
#define kvs_timer_create sim_env_timer_create
#define kvs_timer_set sim_env_timer_set
#define kvs_timer_destroy sim_env_timer_destroy
#define kvs_log_enabled sim_env_log_enabled
#define kvs_log sim_env_log
#define kvs_failpoint_hit sim_env_failpoint_hit
#define net_rpc_call sim_env_rpc_call
#define net_rpc_cancel sim_env_rpc_cancel
#define net_rpc_item sim_env_rpc_item
#define net_rpc_end sim_env_rpc_end
#define net_rpc_close sim_env_rpc_close
#define net_etcd_create sim_etcd_port_create
#define net_etcd_destroy sim_etcd_port_destroy
#define net_etcd_login sim_etcd_port_login
#define net_etcd_call sim_etcd_port_call
#define net_etcd_watch sim_etcd_port_watch
#define net_etcd_unwatch sim_etcd_port_unwatch
#define net_etcd_revoke_now sim_etcd_port_revoke_now
#define net_etcd_put_grant sim_etcd_put_grant
#define net_etcd_put_lease sim_etcd_put_lease
#define net_etcd_put_range sim_etcd_put_range
#define net_etcd_put_put sim_etcd_put_put
#define net_etcd_put_delete sim_etcd_put_delete
#define net_etcd_put_swap sim_etcd_put_swap

/* what they are called by */
#define cls_embedded_server_create sim_cls_embedded_server_create
#define cls_embedded_server_call sim_cls_embedded_server_call
#define cls_embedded_server_cancel sim_cls_embedded_server_cancel
#define cls_embedded_server_down sim_cls_embedded_server_down
#define cls_embedded_client_create sim_cls_embedded_client_create
#define cls_embedded_client_up sim_cls_embedded_client_up
#define cls_embedded_client_down sim_cls_embedded_client_down
#define cls_embedded_client_item sim_cls_embedded_client_item
#define cls_embedded_client_end sim_cls_embedded_client_end
#define cls_etcd_create sim_cls_etcd_create
#define cls_etcd_stats sim_cls_etcd_stats
#define cls_etcd_leave_now sim_cls_etcd_leave_now
#define cls_etcd_lease sim_cls_etcd_lease
#define cls_digest_writer_create sim_cls_digest_writer_create
#define cls_digest_writer_destroy sim_cls_digest_writer_destroy
#define cls_digest_writer_stats sim_cls_digest_writer_stats
#define cls_digest_reader_create sim_cls_digest_reader_create
#define cls_digest_reader_destroy sim_cls_digest_reader_destroy
#define cls_digest_read sim_cls_digest_read

#endif
