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
  void (*share)(part_function *, void *const *, long, long);
  int (*num_threads)(void);
};

/* Does the steps of a plan; returns how many were done before an index was out of range. */
int64_t run(void **arguments, char *workspace, const struct plan *plan) {
  const struct team team = {plan->share, plan->share ? plan->num_threads() : 1};
  for (int64_t number = 0; number < plan->num_steps; number++) {
    for (int64_t i = 0; i < plan->num_gathered; i++) {
      const struct gathered *from = plan->gathered + i;
      for (int64_t j = 0; j < plan->batch_size; j++)
        memcpy(from->batch + j * from->row_bytes,
               from->rows + plan->indices[number * plan->batch_size + j] * from->row_bytes,
               from->row_bytes);
    }
    if (plan->options) update_numbers(plan->options, plan->counts, arguments[plan->numbers]);
    if (step(arguments, workspace, &team)) return number;
    for (int64_t i = 0; i < plan->num_counters; i++) *plan->counters[i] += 1;
    arguments[plan->loss] = (char *)arguments[plan->loss] + plan->loss_bytes;
  }
  return plan->num_steps;
}
