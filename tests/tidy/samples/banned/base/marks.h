/* TODO later */ /* bite */
// FIXME /* bite */
/* XXX */ /* bite */
int a; /* HACK: works */ /* bite */
const char *t = "not implemented"; /* bite */
const char *u = "Not yet implemented"; /* bite */
int placeholder_page; /* bite */
/* a Stub for now */ /* bite */
int dummy; /* bite */
char name[] = "/tmp/kvasir-XXXXXX";
int stubborn, todo_list_is_a_word, hackney;
