/* Operators: x + y, x < y, -x, bool(x), float(x). The shortest path through the extension: two tensors or a tensor and a number go into a
 * dt_args without parsing. Anything else gives NotImplemented, so Python tries the other operand and then raises its TypeError. */
#include "python/py.h"

/* Operators used by the slots, found once. */
/* clang-format off */
#define OPERATORS(X) \
    X(add) X(sub) X(mul) X(div) X(floor_divide) X(remainder) X(pow) X(matmul) X(neg) X(abs) X(bitwise_and) X(bitwise_or) X(bitwise_xor) \
    X(bitwise_not) X(bitwise_left_shift) X(bitwise_right_shift) X(eq) X(ne) X(lt) X(le) X(gt) X(ge)
/* clang-format on */
enum {
#define X(name) OP_##name,
    OPERATORS(X)
#undef X
        OP_COUNT
};
static const char *const op_names[] = {
#define X(name) #name,
    OPERATORS(X)
#undef X
};
static struct {
    const dt_op *op, *reverse; /* tensor first; number first: an overload, or the same operator with the operands swapped */
    int n_params;
    bool swap;
} ops[OP_COUNT];

/* The first overload of a name that takes a tensor (or, if `number`, a number) first and needs no more than two arguments. */
static const dt_op *overload(const char *base, bool number) {
    for (int i = 0; i < dt_ops_count(); i++) {
        const dt_op_info *info = dt_op_get_info(dt_ops_at(i));
        if (strcmp(info->base, base) || !info->n_params || (info->n_params > 2 && !info->param[2].has_default)) continue;
        if (info->param[0].kind == DT_PK_VALUE || (!number && info->param[0].kind == DT_PK_TENSOR)) return dt_ops_at(i);
    }
    return NULL;
}

static bool find(int k) {
    if (DT_LIKELY(ops[k].op != NULL)) return true;
    const char *name = op_names[k];
    const dt_op *value_first = overload(name, true), *op = overload(name, false);
    if (!op) {
        PyErr_Format(PyExc_NotImplementedError, "this needs the operator '%s', which is not available", name);
        return false;
    }
    ops[k].reverse = value_first;
    if (!value_first && k == OP_sub) {
        ops[k].reverse = overload("rsub", false);
        ops[k].swap = true;
    } else if (!value_first && (k == OP_add || k == OP_mul || k == OP_bitwise_and || k == OP_bitwise_or || k == OP_bitwise_xor)) {
        ops[k].reverse = op;
        ops[k].swap = true;
    }
    ops[k].n_params = dt_op_get_info(op)->n_params;
    ops[k].op = op;
    return true;
}

/* A number or tensor into a. 0 = neither. Arrays become tensors (owned by *made). */
static inline int operand(PyObject *o, dt_arg *a, PyObject **made) {
    if (DT_LIKELY(Py_TYPE(o) == dt_py_tensor_type)) {
        *a = DT_PY_ARG_T(dt_py_tensor_of(o));
        return 1;
    }
    int r = dt_py_to_value(o, a);
    if (r || !dt_py_is_array(o)) return r;
    *made = dt_py_wrap(dt_py_tensor_from(o, DT_DTYPE_NONE, NULL));
    if (!*made) return -1;
    *a = DT_PY_ARG_T(dt_py_tensor_of(*made));
    return 1;
}

static PyObject *invoke2(const dt_op *op, const dt_args *args) {
    dt_tensor *out[1];
    int n = 0;
    dt_py_site();
    DT_PY_CHECK(dt_invoke(op, args, 1, out, &n));
    return dt_py_wrap(out[0]);
}

/* A number on the left. */
static PyObject *call2_reverse(int k, dt_args *args) {
    if (!ops[k].reverse) { /* the number as a 0-dim tensor would take part in type promotion as a tensor: wrong, so say no */
        return PyErr_Format(PyExc_TypeError, "unsupported operand types: a number on the left of '%s'", op_names[k]);
    }
    if (ops[k].swap) {
        dt_arg x = args->a[0];
        args->a[0] = args->a[1];
        args->a[1] = x;
    }
    return invoke2(ops[k].reverse, args);
}

static PyObject *call2(int k, PyObject *x, PyObject *y) {
    if (DT_UNLIKELY(!find(k))) return NULL;
    dt_args args;
    memset(args.a, 0, sizeof *args.a * (size_t)(ops[k].n_params + 1));
    args.spec = NULL;
    args.generator = NULL;
    PyObject *made = NULL, *made2 = NULL;
    int r = operand(x, &args.a[0], &made);
    if (r > 0) r = operand(y, &args.a[1], &made2);
    PyObject *result = NULL;
    if (r > 0)
        result = DT_LIKELY(args.a[0].kind == DT_ARG_TENSOR) ? invoke2(ops[k].op, &args) : call2_reverse(k, &args);
    else if (r == 0)
        result = Py_NewRef(Py_NotImplemented);
    Py_XDECREF(made);
    Py_XDECREF(made2);
    return result;
}

static PyObject *call2_inplace(int k, PyObject *x, PyObject *y) {
    if (DT_UNLIKELY(!find(k))) return NULL;
    dt_args args;
    memset(args.a, 0, sizeof *args.a * (size_t)ops[k].n_params);
    args.spec = NULL;
    args.generator = NULL;
    PyObject *made = NULL;
    args.a[0] = DT_PY_ARG_T(dt_py_tensor_of(x));
    int r = operand(y, &args.a[1], &made);
    PyObject *result = NULL;
    if (r > 0) {
        dt_py_site();
        dt_status s = dt_invoke_inplace(ops[k].op, &args);
        result = s ? dt_py_raise(s) : Py_NewRef(x);
    } else if (r == 0) {
        result = Py_NewRef(Py_NotImplemented);
    }
    Py_XDECREF(made);
    return result;
}

static PyObject *call1(int k, PyObject *x) {
    if (DT_UNLIKELY(!find(k))) return NULL;
    dt_args args;
    memset(&args, 0, sizeof args);
    args.a[0] = DT_PY_ARG_T(dt_py_tensor_of(x));
    dt_tensor *out[1];
    int n = 0;
    dt_py_site();
    DT_PY_CHECK(dt_invoke(ops[k].op, &args, 1, out, &n));
    return dt_py_wrap(out[0]);
}

#define BINARY(name, op)                                                                  \
    static PyObject *nb_##name(PyObject *x, PyObject *y) { return call2(OP_##op, x, y); } \
    static PyObject *nb_inplace_##name(PyObject *x, PyObject *y) { return call2_inplace(OP_##op, x, y); }
BINARY(add, add)
BINARY(subtract, sub)
BINARY(multiply, mul)
BINARY(true_divide, div)
BINARY(floor_divide, floor_divide)
BINARY(remainder, remainder)
BINARY(and, bitwise_and)
BINARY(or, bitwise_or)
BINARY(xor, bitwise_xor)
BINARY(lshift, bitwise_left_shift)
BINARY(rshift, bitwise_right_shift)

static PyObject *nb_matmul(PyObject *x, PyObject *y) {
    if (!dt_py_is_tensor(x) && !dt_py_is_array(x)) Py_RETURN_NOTIMPLEMENTED;
    if (!dt_py_is_tensor(y) && !dt_py_is_array(y)) Py_RETURN_NOTIMPLEMENTED;
    return call2(OP_matmul, x, y);
}
static PyObject *nb_power(PyObject *x, PyObject *y, PyObject *mod) {
    if (mod != Py_None) return PyErr_Format(PyExc_TypeError, "pow() of tensors takes no modulus");
    return call2(OP_pow, x, y);
}
static PyObject *nb_inplace_power(PyObject *x, PyObject *y, PyObject *mod) { return call2_inplace(OP_pow, x, y); }
static PyObject *nb_negative(PyObject *x) { return call1(OP_neg, x); }
static PyObject *nb_absolute(PyObject *x) { return call1(OP_abs, x); }
static PyObject *nb_invert(PyObject *x) { return call1(OP_bitwise_not, x); }
static PyObject *nb_positive(PyObject *x) { return Py_NewRef(x); }
static PyObject *nb_divmod(PyObject *x, PyObject *y) {
    PyObject *q = call2(OP_floor_divide, x, y);
    if (!q || q == Py_NotImplemented) return q;
    PyObject *r = call2(OP_remainder, x, y);
    return r ? Py_BuildValue("NN", q, r) : (Py_DECREF(q), NULL);
}

static PyObject *richcompare(PyObject *x, PyObject *y, int op) {
    static const uint8_t which[] = {[Py_LT] = OP_lt, [Py_LE] = OP_le, [Py_EQ] = OP_eq, [Py_NE] = OP_ne, [Py_GT] = OP_gt, [Py_GE] = OP_ge};
    return call2(which[op], x, y);
}

/* ---- conversions: these read ------------------------------------------------------------------------------------------------------- */
static int nb_bool(PyObject *x) {
    int64_t n = dt_tensor_meta(dt_py_tensor_of(x))->numel;
    if (n != 1) {
        PyErr_Format(PyExc_RuntimeError, "Boolean value of Tensor with %s is ambiguous", n ? "more than one value" : "no values");
        return -1;
    }
    dt_dtype t;
    char v[8];
    if (dt_py_read_one(dt_py_tensor_of(x), &t, v) < 0) return -1;
    return dt_dtype_is_float(t) ? dt_element_get_f64(t, v) != 0 : dt_element_get_i64(t, v) != 0;
}
static PyObject *read_number(PyObject *x) {
    int64_t n = dt_tensor_meta(dt_py_tensor_of(x))->numel;
    if (n != 1) return PyErr_Format(PyExc_RuntimeError, "a Tensor with %lld elements cannot be converted to Scalar", (long long)n);
    dt_dtype t;
    char v[8];
    return dt_py_read_one(dt_py_tensor_of(x), &t, v) < 0 ? NULL : dt_py_item_of(t, v);
}
static PyObject *nb_float(PyObject *x) {
    PyObject *v = read_number(x), *r = v ? PyNumber_Float(v) : NULL;
    Py_XDECREF(v);
    return r;
}
static PyObject *nb_int(PyObject *x) {
    PyObject *v = read_number(x), *r = v ? PyNumber_Long(v) : NULL;
    Py_XDECREF(v);
    return r;
}
static PyObject *nb_index(PyObject *x) {
    const dt_meta *m = dt_tensor_meta(dt_py_tensor_of(x));
    if (dt_dtype_is_float((dt_dtype)m->dtype) || m->numel != 1)
        return PyErr_Format(PyExc_TypeError, "only integer tensors of a single element can be converted to an index");
    return nb_int(x);
}

int dt_py_number_slots(PyType_Slot *s) {
#define BOTH(name) \
    {Py_nb_##name, nb_##name}, { Py_nb_inplace_##name, nb_inplace_##name }
    const PyType_Slot all[] = {
        BOTH(add),
        BOTH(subtract),
        BOTH(multiply),
        BOTH(true_divide),
        BOTH(floor_divide),
        BOTH(remainder),
        BOTH(and),
        BOTH(or),
        BOTH(xor),
        BOTH(lshift),
        BOTH(rshift),
        BOTH(power),
        {Py_nb_matrix_multiply, nb_matmul},
        {Py_nb_negative, nb_negative},
        {Py_nb_absolute, nb_absolute},
        {Py_nb_invert, nb_invert},
        {Py_nb_positive, nb_positive},
        {Py_nb_divmod, nb_divmod},
        {Py_tp_richcompare, richcompare},
        {Py_nb_bool, nb_bool},
        {Py_nb_float, nb_float},
        {Py_nb_int, nb_int},
        {Py_nb_index, nb_index},
    };
    memcpy(s, all, sizeof all);
    return (int)(sizeof all / sizeof *all);
}
