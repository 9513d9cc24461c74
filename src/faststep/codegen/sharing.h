/* Statements that threads share: each is done in parts, which are the same for any number of threads,
   so that results are too. */

/* Does one part of a statement; `pointers` are the statement's. */
typedef void part_function(void *const *pointers, long part);

/* Those who do the parts; no `share` where the caller does them all. */
struct team {
  void (*share)(part_function *function, void *const *pointers, long parts, long threads, int wakes);
  int64_t threads;
};

/* `wakes` where the statement is so long that it is worth waking threads that sleep. */
static inline void in_parts(const struct team *team, part_function *function,
                            void *const *pointers, long parts, int wakes) {
  if (team->share && team->threads > 1) {
    team->share(function, pointers, parts, team->threads, wakes);
    return;
  }
  for (long part = 0; part < parts; part++) function(pointers, part);
}
