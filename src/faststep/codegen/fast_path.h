/* Generated steps called from Python, with all that is asked before them.

   What it needs of Python and of DLPack is declared here: functions of the stable ABI, so that no header
   of theirs has to be installed. It is for builds with a global interpreter lock, which is held
   throughout. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct python_object object;
typedef intptr_t python_size;

extern object *PyObject_Type(object *);
extern object *PyObject_GetAttr(object *, object *);
extern double PyFloat_AsDouble(object *);
extern object *PyDict_GetItemWithError(object *, object *);
extern python_size PyDict_Size(object *);
extern object *PyDict_Values(object *);
extern object *PyList_GetItem(object *, python_size);
extern python_size PyList_Size(object *);
extern int PyList_SetSlice(object *, python_size, python_size, object *);
extern void *PyLong_AsVoidPtr(object *);
extern object *PyExc_IndexError;
extern object *PyErr_Format(object *, const char *, ...);
extern object *PyErr_Occurred(void);
extern void PyErr_Clear(void);
extern void Py_IncRef(object *);
extern void Py_DecRef(object *);

enum { SIZE, ITEM, ATTRIBUTE, ELEMENTS, ADDRESS, NUMBER, VALUES };

/* References are not counted: Python keeps the objects as long as the call. */
struct guard {
  int64_t check;
  object *holder, *key;
  union {
    object *object;
    python_size size;
    char *address;
    double *place; /* where a number is written to, which may be another at each call */
  } wanted;
};

/* DLPack's DLTensor, and torch's function that fills one in without taking hold of the tensor. */
struct tensor {
  char *data;
  struct {
    int32_t type, id;
  } device;
  int32_t num_dims;
  uint32_t dtype;
  const int64_t *shape, *strides;
  uint64_t byte_offset;
};
typedef int describe_function(object *, struct tensor *);

struct input {
  object *type;
  struct tensor like;
  void **place; /* where its address is written to */
};

struct fast_path {
  int64_t num_guards;
  const struct guard *guards;
  int64_t num_inputs;
  struct input inputs[3]; /* inputs, targets, and for several steps the indices of their samples */
  int64_t num_indices, num_samples;
  describe_function *describe;
  void (*mark)(void *const *); /* torch's, which tells autograd that a tensor was written to */
  int64_t num_marked;
  void *const *marked;                    /* tensors of C++ that the step writes to */
  object *none;
  object *losses;                         /* list of tensors for results to come */
  int64_t first_loss, loss_bytes;         /* where the first one's data lies; the next behind it */
  int64_t num_losses;
  const int64_t *is_in_use;               /* whether another thread does a step of it */
  void **addresses;                       /* as for run */
  int64_t loss_slot;
  int64_t num_steps;
  int64_t (*run)(void **, char *, const void *);
  char *workspace;
  const void *plan;
};

static int is_at(const struct fast_path *call, object *tensor, const char *address) {
  struct tensor found;
  return !call->describe(tensor, &found) && found.data + found.byte_offset == address;
}

static int is_attribute(object *holder, object *name, object *wanted) {
  object *found = PyObject_GetAttr(holder, name);
  if (!found) return 0;
  Py_DecRef(found);
  return found == wanted;
}

static int read_number(const struct guard *guard) {
  object *found = PyDict_GetItemWithError(guard->holder, guard->key);
  if (!found) return 0;
  *guard->wanted.place = PyFloat_AsDouble(found);
  return *guard->wanted.place != -1.0 || !PyErr_Occurred();
}

/* Whether two lists hold the same objects. */
static int are_same(object *list, object *wanted) {
  const python_size size = PyList_Size(wanted);
  if (PyList_Size(list) != size) return 0;
  for (python_size i = 0; i < size; i++)
    if (PyList_GetItem(list, i) != PyList_GetItem(wanted, i)) return 0;
  return 1;
}

static int has_values(object *dict, object *wanted) {
  object *found = PyDict_Values(dict);
  if (!found) return 0;
  const int has = are_same(found, wanted);
  Py_DecRef(found);
  return has;
}

static int holds(const struct fast_path *call, const struct guard *guard) {
  switch (guard->check) {
  case SIZE: return PyDict_Size(guard->holder) == guard->wanted.size;
  case ITEM: return PyDict_GetItemWithError(guard->holder, guard->key) == guard->wanted.object;
  case ATTRIBUTE: return is_attribute(guard->holder, guard->key, guard->wanted.object);
  case ELEMENTS: return are_same(guard->holder, guard->wanted.object);
  case NUMBER: return read_number(guard);
  case VALUES: return has_values(guard->holder, guard->wanted.object);
  case ADDRESS: return is_at(call, guard->holder, guard->wanted.address);
  }
  return 0;
}

/* Returns the address of a tensor's data, where it is like the one that the call is for; else NULL. */
static char *address_if_like(const struct fast_path *call, object *given,
                             const struct input *input) {
  object *type = PyObject_Type(given);
  Py_DecRef(type);
  struct tensor found;
  if (type != input->type || call->describe(given, &found)) return NULL;
  const struct tensor *like = &input->like;
  const size_t size = like->num_dims * sizeof(int64_t);
  const int is_like = found.dtype == like->dtype && found.device.type == like->device.type &&
                      found.num_dims == like->num_dims && !memcmp(found.shape, like->shape, size) &&
                      !memcmp(found.strides, like->strides, size);
  return is_like ? found.data + found.byte_offset : NULL;
}

static int are_within(const int64_t *indices, int64_t count, int64_t num_samples) {
  int are = 1;
  for (int64_t i = 0; i < count; i++) are &= (uint64_t)indices[i] < (uint64_t)num_samples;
  return are;
}

/* Does the steps; returns how many were done, 0 where it is not for them. */
static int64_t do_steps(struct fast_path *call, object *const *given) {
  char *found[3];
  for (int64_t i = 0; i < call->num_guards; i++)
    if (!holds(call, &call->guards[i])) return 0;
  for (int i = 0; i < call->num_inputs; i++)
    if (!(found[i] = address_if_like(call, given[i], &call->inputs[i]))) return 0;
  /* From here on nothing of Python's is called, which might let another thread in. */
  if (*call->is_in_use || !call->num_losses) return 0;
  if (call->num_indices &&
      !are_within((const int64_t *)found[2], call->num_indices, call->num_samples))
    return 0;
  for (int i = 0; i < call->num_inputs; i++) *call->inputs[i].place = found[i];
  call->addresses[call->loss_slot] =
      (void *)(call->first_loss + (call->num_losses - 1) * call->loss_bytes);
  return call->run(call->addresses, call->workspace, call->plan);
}

/* A function of Python: inputs and targets of a step to its loss, or those of a data set and
   indices to the losses of several steps; None where nothing was done. */
object *fast_path(object *self, object *const *given, python_size count) {
  struct fast_path *call = PyLong_AsVoidPtr(self);
  int64_t done = count == call->num_inputs ? do_steps(call, given) : 0;
  if (!done) {
    PyErr_Clear();
    Py_IncRef(call->none);
    return call->none;
  }
  object *loss = PyList_GetItem(call->losses, --call->num_losses);
  Py_IncRef(loss);
  PyList_SetSlice(call->losses, call->num_losses, call->num_losses + 1, NULL);
  for (int64_t i = 0; i < call->num_marked; i++) call->mark(call->marked + i);
  if (done == call->num_steps) return loss;
  Py_DecRef(loss);
  return PyErr_Format(PyExc_IndexError,
                      "a class or another index in the batch is out of range (step %lld of %lld)",
                      (long long)done, (long long)call->num_steps);
}
