/* Calls of a generated step, one after the other.

   Included after the step's own code, which defines
     int step(void *const *arguments, char *workspace, const struct team *team)
     void update_numbers(const double *options, float *const *counts, void *out). */

/* Samples of a data set that each step takes as its batch. */
struct gathered {
  const char *rows;  /* the data set, samples along the first dimension, dense */
  int64_t row_bytes; /* of one sample */
  char *batch;       /* where the batch is put together */
};

struct plan {
  int64_t num_steps;
  int64_t numbers;       /* argument with the numbers of an update, computed for each step */
  const double *options; /* what they are computed from, with the counts; none for no numbers */
  float **counts;        /* updates that the packs have had */
  int64_t loss, loss_bytes; /* argument with the results, and bytes of one step's */
  int64_t num_counters;
  float **counters; /* the optimizer's counts of steps */
  int64_t num_gathered, batch_size;
  const struct gathered *gathered;
  const int64_t *indices; /* samples of each step */
  /* Hands out parts to threads, and says to how many; neither where no statement has parts. */
  void (*share)(part_function *, void *const *, long, long, int);
  int (*num_threads)(void);
};

/* Puts a batch together; with a constant size of a row, without calls. */
static inline __attribute__((always_inline)) void gather(const struct gathered *from,
                                                         const int64_t *indices, int64_t count,
                                                         const int64_t size) {
  for (int64_t i = 0; i < count; i++)
    memcpy(from->batch + i * size, from->rows + indices[i] * size, size);
}

/* Does the steps of a plan; returns how many were done before an index was out of range. */
int64_t run(void **arguments, char *workspace, const struct plan *plan) {
  const struct team team = {plan->share, plan->share ? plan->num_threads() : 1};
  for (int64_t number = 0; number < plan->num_steps; number++) {
    for (int64_t i = 0; i < plan->num_gathered; i++) {
      const struct gathered *from = plan->gathered + i;
      const int64_t count = plan->batch_size, *indices = plan->indices + number * count;
      switch (from->row_bytes) {
      case 4: gather(from, indices, count, 4); break;
      case 8: gather(from, indices, count, 8); break;
      case 16: gather(from, indices, count, 16); break;
      case 32: gather(from, indices, count, 32); break;
      case 64: gather(from, indices, count, 64); break;
      default: gather(from, indices, count, from->row_bytes);
      }
    }
    if (plan->options) update_numbers(plan->options, plan->counts, arguments[plan->numbers]);
    if (step(arguments, workspace, &team)) return number;
    for (int64_t i = 0; i < plan->num_counters; i++) *plan->counters[i] += 1;
    arguments[plan->loss] = (char *)arguments[plan->loss] + plan->loss_bytes;
  }
  return plan->num_steps;
}
