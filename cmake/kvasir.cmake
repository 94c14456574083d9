# The few words that every folder's CMakeLists.txt is written in:
#   kvs_library(NAME [PURE] SOURCES ... [DEPS ...])   a folder's static archive; PURE ones are checked by tests/tidy with nm -u
#   kvs_program(NAME SOURCES ... DEPS ...)            an executable in build/<preset>/bin
#   kvs_test(NAME SOURCES ... DEPS ... [LABELS ...])  a cmocka program registered with ctest under NAME
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

# docs/numerics: results must not depend on what the compiler fuses or reorders.
add_library(kvs_flags INTERFACE)
target_compile_options(kvs_flags INTERFACE
  -Wall -Wextra -Werror -Wpedantic -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes -Wformat=2 -Wno-format-zero-length -Wundef
  -fno-strict-aliasing -ffp-contract=off -fno-common -fstack-protector-strong)
target_include_directories(kvs_flags INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
if(KVASIR_FAILPOINTS)
  target_compile_definitions(kvs_flags INTERFACE KVASIR_FAILPOINTS=1)
endif()
target_compile_definitions(kvs_flags INTERFACE KVASIR_VERSION="${PROJECT_VERSION}")

# Debian's packages, found once, linked by name where they are needed.
pkg_check_modules(CRYPTO REQUIRED IMPORTED_TARGET libcrypto)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(PROTOBUFC REQUIRED IMPORTED_TARGET libprotobuf-c)
pkg_check_modules(UCX REQUIRED IMPORTED_TARGET ucx)
pkg_check_modules(MHD REQUIRED IMPORTED_TARGET libmicrohttpd)
pkg_check_modules(CURL REQUIRED IMPORTED_TARGET libcurl)
pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)
find_package(nng REQUIRED)

set_property(GLOBAL PROPERTY KVS_PURE_ARCHIVES "")

function(kvs_library name)
  cmake_parse_arguments(A "PURE" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${A_SOURCES})
  target_link_libraries(${name} PUBLIC kvs_flags ${A_DEPS})
  if(A_PURE)
    set_property(GLOBAL APPEND PROPERTY KVS_PURE_ARCHIVES ${name})
  else()
    target_compile_definitions(${name} PRIVATE _GNU_SOURCE)
  endif()
endfunction()

function(kvs_program name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE kvs_flags ${A_DEPS})
  target_compile_definitions(${name} PRIVATE _GNU_SOURCE)
endfunction()

# A test's limit is there to end what hangs, never to measure: sanitizer builds get six times as long.
set(KVS_SLOW 1)
if(CMAKE_BUILD_TYPE STREQUAL "Debug" AND CMAKE_C_FLAGS_DEBUG MATCHES "fsanitize")
  set(KVS_SLOW 6)
endif()

function(kvs_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  string(REPLACE "." "_" target "test_${name}")
  add_executable(${target} ${A_SOURCES})
  target_link_libraries(${target} PRIVATE kvs_flags ${A_DEPS} PkgConfig::CMOCKA)
  target_compile_definitions(${target} PRIVATE _GNU_SOURCE KVS_SOURCE_DIR="${CMAKE_SOURCE_DIR}" KVS_SHARED_DIR="${CMAKE_SOURCE_DIR}/../shared")
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${target})
  if(NOT A_LABELS)
    set(A_LABELS unit)
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  math(EXPR A_TIMEOUT "${A_TIMEOUT} * ${KVS_SLOW}")
  # 77: the program says why it could not run (data or model absent) and ctest reports "Skipped".
  set_tests_properties(${name} PROPERTIES LABELS "${A_LABELS}" TIMEOUT ${A_TIMEOUT} SKIP_RETURN_CODE 77)
  # UCX's constructor patches madvise, which ThreadSanitizer does not survive when a thread ends.
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "UCX_MEM_MMAP_HOOK_MODE=none")
endfunction()

# Puts the failing allocator of tests/support/nomem.h in front of the real one of such a test.
function(tst_nomem name)
  string(REPLACE "." "_" target "test_${name}")
  target_link_options(${target} PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=free,--wrap=strdup,--wrap=aligned_alloc)
endfunction()
