/* The threads that share statements of generated steps: one team in a process, for all steps.

   Compiled by itself. A thread takes the next part that nobody has, and the caller waits for parts,
   never for threads: one that sleeps, or that the system lets wait, delays nothing. An idle thread
   looks for work for a while before it sleeps, as waking takes longer than most statements. */

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/resource.h>
#include <time.h>
#include "sharing.h"

#define LOOKS_FOR_NS 100000
/* Where cores are busy, threads that look for work take time from their caller, and one that the system lets
   wait may have a part meanwhile. A caller whose core was taken from him, or who waits for a part longer than
   for his own and than this, does all parts for a while; a longer while each time that happens soon again. */
#define LATE_NS 20000
#define ASKS_NS 1000000 /* how often he asks whether his core was taken from him */
#define ALONE_NS INT64_C(10000000)
#define MOST_ALONE_NS INT64_C(1000000000)
#define MOST_THREADS 32 /* a statement has no more parts */
#define LINE __attribute__((aligned(64))) /* of the cache: what others write lies elsewhere */

/* Number of the statement << 32 | its parts << 16 | the first part that nobody has taken: one word, so
   that who takes a part knows that the statement is still the one that he has read about. */
static LINE _Atomic uint64_t job;
static LINE _Atomic(part_function *) function_of_job;
static _Atomic(void *const *) pointers_of_job;
static LINE atomic_long done;     /* parts of the job */
static LINE atomic_long sleeping; /* threads that are to be woken for a job */
static atomic_long threads;       /* that take parts, the caller among them */
static atomic_int is_busy;        /* a caller has the team */
/* Written by the caller that has the team. */
static int64_t last_end;    /* when a statement was last done */
static int64_t last_late, alone_ns, alone_until; /* until when nobody is asked */
static int64_t last_asked; /* for how often the core of a caller was taken from him */
static long times_taken;
static long started;              /* threads beside the callers */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

static int has_part(uint64_t now) { return (now & 0xffff) < (now >> 16 & 0xffff); }

static int has_work(long number) {
  return number < atomic_load(&threads) && has_part(atomic_load(&job));
}

static void take_parts(void) {
  uint64_t now = atomic_load(&job);
  while (has_part(now)) {
    part_function *function = atomic_load(&function_of_job);
    void *const *pointers = atomic_load(&pointers_of_job);
    if (atomic_compare_exchange_weak(&job, &now, now + 1)) {
      function(pointers, (long)(now & 0xffff));
      atomic_fetch_add(&done, 1);
      now = atomic_load(&job);
    }
  }
}

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void sleep_until_woken(long number) {
  pthread_mutex_lock(&lock);
  const int is_wanted = number < atomic_load(&threads);
  if (is_wanted) atomic_fetch_add(&sleeping, 1);
  /* A caller offers parts and then looks who sleeps; this is the other way round: one sees the other. */
  if (!has_work(number)) pthread_cond_wait(&wake, &lock);
  if (is_wanted) atomic_fetch_sub(&sleeping, 1);
  pthread_mutex_unlock(&lock);
}

static void *work(void *given) {
  const long number = (long)(intptr_t)given;
  for (;;) {
    const int64_t end = now_ns() + LOOKS_FOR_NS;
    while (!has_work(number) && now_ns() < end)
      for (int i = 0; i < 16 && !has_work(number); i++) pause_briefly();
    if (has_work(number))
      take_parts();
    else
      sleep_until_woken(number);
  }
  return 0;
}

static void wake_all(void) {
  pthread_mutex_lock(&lock);
  pthread_cond_broadcast(&wake);
  pthread_mutex_unlock(&lock);
}

/* Makes the team as large as a caller wants it; where no thread can be had, it stays smaller. */
static void resize(long wanted) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the threads of Python */
  for (pthread_t one; started < wanted - 1; started++) {
    if (pthread_create(&one, 0, work, (void *)(intptr_t)(started + 1))) break;
    pthread_detach(one);
  }
  pthread_sigmask(SIG_SETMASK, &before, 0);
  atomic_store(&threads, wanted);
  wake_all();
}

static void do_alone(part_function *function, void *const *pointers, long parts) {
  for (long part = 0; part < parts; part++) function(pointers, part);
}

/* Whether a statement is better done by its caller: the others were late a moment ago, since their cores
   were busy; or they sleep, and it is neither long nor one of many that follow each other. */
static int is_for_caller(int64_t now, int wakes) {
  if (now < alone_until) return 1;
  return !wakes && atomic_load(&sleeping) && now - last_end > LOOKS_FOR_NS / 2;
}

static void stay_alone(int64_t now) {
  const int is_soon = now - last_late < 10 * alone_ns;
  alone_ns = !is_soon ? ALONE_NS : alone_ns < MOST_ALONE_NS / 2 ? 2 * alone_ns : MOST_ALONE_NS;
  last_late = now;
  alone_until = now + alone_ns;
}

/* Whether the system has let the caller wait for his core since this was last asked, if that was lately. */
static int was_core_taken(int64_t now) {
#ifdef RUSAGE_THREAD
  if (now - last_asked < ASKS_NS) return 0;
  struct rusage usage;
  getrusage(RUSAGE_THREAD, &usage);
  const int is_known = now - last_asked < 20 * ASKS_NS && last_asked > alone_until;
  const int was_taken = is_known && usage.ru_nivcsw > times_taken;
  times_taken = usage.ru_nivcsw;
  last_asked = now;
  return was_taken;
#else
  (void)now;
  return 0;
#endif
}

static void share_with_team(part_function *function, void *const *pointers, long parts) {
  const int64_t begin = now_ns();
  atomic_store(&function_of_job, function);
  atomic_store(&pointers_of_job, pointers);
  atomic_store(&done, 0);
  atomic_store(&job, ((atomic_load(&job) >> 32) + 1) << 32 | (uint64_t)parts << 16);
  if (atomic_load(&sleeping)) wake_all();
  take_parts();
  const int64_t own_end = now_ns();
  for (long i = 0; atomic_load(&done) < parts; i++) {
    if (i < 1000)
      pause_briefly();
    else
      sched_yield(); /* who has the last part may be waiting for this core */
  }
  const int64_t end = now_ns();
  if (end - own_end > own_end - begin + LATE_NS || was_core_taken(end)) stay_alone(end);
}

/* Does the parts of a statement, at most 65,535, with `wanted` threads; alone while another caller has
   the team. */
void share(part_function *function, void *const *pointers, long parts, long wanted, int wakes) {
  if (atomic_exchange(&is_busy, 1)) {
    do_alone(function, pointers, parts);
    return;
  }
  if (wanted > MOST_THREADS) wanted = MOST_THREADS;
  if (wanted != atomic_load(&threads)) resize(wanted);
  if (is_for_caller(now_ns(), wakes))
    do_alone(function, pointers, parts);
  else
    share_with_team(function, pointers, parts);
  last_end = now_ns();
  atomic_store(&is_busy, 0);
}

/* A forked process has none of the threads: it begins with a new team. */
static void begin(void) {
  atomic_store(&job, 0);
  atomic_store(&sleeping, 0);
  atomic_store(&threads, 0);
  atomic_store(&is_busy, 0);
  started = 0;
  last_end = last_late = alone_ns = alone_until = last_asked = times_taken = 0;
  pthread_mutex_init(&lock, 0);
  pthread_cond_init(&wake, 0);
}

__attribute__((constructor)) static void begin_in_forked_processes(void) {
  pthread_atfork(0, 0, begin);
}
