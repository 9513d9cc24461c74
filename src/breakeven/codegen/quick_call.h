/* Generated steps called from Python, with all that is asked before them.

   What it needs of Python is declared here: functions of the stable ABI, so that no header of Python's
   has to be installed. It is for builds with a global interpreter lock, which is held throughout. */

#include <stdint.h>
#include <stdlib.h>

typedef struct python_object object;
typedef intptr_t python_size;

extern object *PyObject_Type(object *);
extern object *PyObject_GetAttr(object *, object *);
extern object *PyObject_CallFunctionObjArgs(object *, ...);
extern double PyFloat_AsDouble(object *);
extern python_size PyObject_Size(object *);
extern int PyObject_RichCompareBool(object *, object *, int);
extern object *PyDict_GetItemWithError(object *, object *);
extern object *PyDict_Values(object *);
extern object *PyList_GetItem(object *, python_size);
extern int PyList_SetSlice(object *, python_size, python_size, object *);
extern unsigned long long PyLong_AsUnsignedLongLong(object *);
extern void *PyLong_AsVoidPtr(object *);
extern object *PyExc_IndexError;
extern object *PyErr_Format(object *, const char *, ...);
extern object *PyErr_Occurred(void);
extern void PyErr_Clear(void);
extern void Py_IncRef(object *);
extern void Py_DecRef(object *);

enum { SIZE, ITEM, ATTRIBUTE, EQUAL, ADDRESS, NUMBER, VALUES };
enum { EQ = 2 };

/* References are not counted: Python keeps the objects as long as the call. */
struct guard {
  int64_t check;
  object *holder, *key;
  union {
    object *object;
    uint64_t number;
    double *place; /* where a number is written to, which may be another at each call */
  } wanted;
};

struct input {
  object *type, *shape, *strides, *dtype;
  void **place; /* where its address is written to */
};

struct quick_call {
  int64_t num_guards;
  const struct guard *guards;
  int64_t num_inputs;
  struct input inputs[3]; /* inputs, targets, and for several steps the indices of their samples */
  int64_t num_indices, num_samples;
  object *data_ptr, *stride;              /* methods of Tensor */
  object *shape_name, *dtype_name, *is_cpu_name, *is_true, *none;
  object *mark, *marked;                  /* called with what the step writes to */
  object *losses;                         /* list of tensors for results to come */
  const uint64_t *loss_addresses;
  int64_t num_losses;
  const int64_t *is_in_use;               /* whether another thread does a step of it */
  void **addresses;                       /* as for run */
  int64_t loss_slot;
  int64_t num_steps;
  int64_t (*run)(void **, char *, const void *);
  char *workspace;
  const void *plan;
};

/* Returns the address of a tensor's data; 0 with an error set, or of an empty one. */
static uint64_t address_of(const struct quick_call *call, object *tensor) {
  object *number = PyObject_CallFunctionObjArgs(call->data_ptr, tensor, NULL);
  if (!number) return 0;
  uint64_t address = PyLong_AsUnsignedLongLong(number);
  Py_DecRef(number);
  return address;
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

static int equals(object *found, object *wanted) {
  if (!found) return 0;
  int is_equal = PyObject_RichCompareBool(found, wanted, EQ) == 1;
  Py_DecRef(found);
  return is_equal;
}

static int holds(const struct quick_call *call, const struct guard *guard) {
  switch (guard->check) {
  case SIZE: return PyObject_Size(guard->holder) == (python_size)guard->wanted.number;
  case ITEM: return PyDict_GetItemWithError(guard->holder, guard->key) == guard->wanted.object;
  case ATTRIBUTE: return is_attribute(guard->holder, guard->key, guard->wanted.object);
  case EQUAL: return PyObject_RichCompareBool(guard->holder, guard->wanted.object, EQ) == 1;
  case NUMBER: return read_number(guard);
  case VALUES: return equals(PyDict_Values(guard->holder), guard->wanted.object);
  case ADDRESS: return address_of(call, guard->holder) == guard->wanted.number;
  }
  return 0;
}

static int is_like(const struct quick_call *call, object *given, const struct input *input) {
  object *type = PyObject_Type(given);
  Py_DecRef(type);
  return type == input->type && is_attribute(given, call->dtype_name, input->dtype) &&
         is_attribute(given, call->is_cpu_name, call->is_true) &&
         equals(PyObject_GetAttr(given, call->shape_name), input->shape) &&
         equals(PyObject_CallFunctionObjArgs(call->stride, given, NULL), input->strides);
}

static int are_within(const int64_t *indices, int64_t count, int64_t num_samples) {
  int are = 1;
  for (int64_t i = 0; i < count; i++) are &= (uint64_t)indices[i] < (uint64_t)num_samples;
  return are;
}

/* Does the steps; returns how many were done, 0 where it is not for them. */
static int64_t do_steps(struct quick_call *call, object *const *given) {
  uint64_t found[3];
  for (int i = 0; i < call->num_inputs; i++)
    if (!is_like(call, given[i], &call->inputs[i])) return 0;
  for (int64_t i = 0; i < call->num_guards; i++)
    if (!holds(call, &call->guards[i])) return 0;
  for (int i = 0; i < call->num_inputs; i++) {
    found[i] = address_of(call, given[i]);
    if (PyErr_Occurred()) return 0;
  }
  /* From here on nothing of Python's is called, which might let another thread in. */
  if (*call->is_in_use || !call->num_losses) return 0;
  if (call->num_indices &&
      !are_within((const int64_t *)found[2], call->num_indices, call->num_samples))
    return 0;
  for (int i = 0; i < call->num_inputs; i++) *call->inputs[i].place = (void *)found[i];
  call->addresses[call->loss_slot] = (void *)call->loss_addresses[call->num_losses - 1];
  return call->run(call->addresses, call->workspace, call->plan);
}

/* A function of Python: inputs and targets of a step to its loss, or those of a data set and
   indices to the losses of several steps; None where nothing was done. */
object *quick_call(object *self, object *const *given, python_size count) {
  struct quick_call *call = PyLong_AsVoidPtr(self);
  int64_t done = count == call->num_inputs ? do_steps(call, given) : 0;
  if (!done) {
    PyErr_Clear();
    Py_IncRef(call->none);
    return call->none;
  }
  object *loss = PyList_GetItem(call->losses, --call->num_losses);
  Py_IncRef(loss);
  PyList_SetSlice(call->losses, call->num_losses, call->num_losses + 1, NULL);
  object *marked = PyObject_CallFunctionObjArgs(call->mark, call->marked, NULL);
  if (!marked) {
    Py_DecRef(loss);
    return NULL;
  }
  Py_DecRef(marked);
  if (done == call->num_steps) return loss;
  Py_DecRef(loss);
  return PyErr_Format(PyExc_IndexError,
                      "a class or another index in the batch is out of range (step %lld of %lld)",
                      (long long)done, (long long)call->num_steps);
}
