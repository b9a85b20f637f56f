/* Arguments of a call against an op's signature: kinds, defaults, the attribute struct. Only the slow path comes here; call.c reads the
 * arguments of a cached call itself. Errors are TypeErrors that name the op, the parameter, and what was given. */
#include <math.h>

#include "client/internal.h"

static const char *const kind_names[] = {"NoneType", "Tensor", "list of Tensors", "float", "int", "bool", "tuple of ints", "str", "dtype"};
static const char *const param_names[] = {"Tensor", "tuple of Tensors", "Tensor or number", "number", "int", "float", "bool", "str",
                                          "dtype",  "tuple of ints",    "Generator"};

dt_status dt_arg_type_error(const dt_prep *p, int i, const dt_arg *a) {
    const dt_param *q = &p->info->param[i];
    if (a->kind == DT_ARG_NONE && !a->given)
        return dt_fail(DT_E_TYPE, "%s() missing required argument '%s' (%s)", p->info->base, q->name, param_names[q->kind]);
    const char *got = a->kind <= DT_ARG_DTYPE ? kind_names[a->kind] : "?";
    return dt_fail(DT_E_TYPE, "%s(): argument '%s' must be %s%s, not %s", p->info->base, q->name, param_names[q->kind], q->optional ? " or None" : "", got);
}

/* Does the default's source text stand for a float? */
static bool text_is_float(const char *t) { return t && (strpbrk(t, ".einEIN") != NULL); }

static dt_status number_default(dt_prep *p, int i) {
    const dt_param *q = &p->info->param[i];
    if ((q->kind != DT_PK_VALUE && q->kind != DT_PK_SCALAR) || !q->has_default || (q->text && !strcmp(q->text, "None"))) return DT_OK;
    bool boolean = q->text && (!strcmp(q->text, "True") || !strcmp(q->text, "False"));
    if (!boolean && text_is_float(q->text)) {
        p->def_meta[i] = dt_meta_wrapped(DT_float64);
        memcpy(&p->def_word[i], &q->num, 8);
    } else {
        p->def_meta[i] = dt_meta_wrapped(boolean ? DT_bool : DT_int64);
        p->def_word[i] = (uint64_t)(int64_t)q->num;
    }
    return p->def_meta[i] ? DT_OK : DT_E_NOMEM;
}

static const dt_prep *prep_failed(dt_prep *p, dt_status s) {
    dt_free(p);
    dt_c.prep_status = s;
    return NULL;
}

const dt_prep *dt_prep_slow(const dt_op *op) {
    dt_status s = dt_ops_init();
    if (s) return prep_failed(NULL, s);
    dt_prep **slot = &dt_c.prep[(uintptr_t)op / 64 % DT_PREP_SLOTS];
    for (dt_prep *q = *slot; q; q = q->next)
        if (q->op == op) return q;
    dt_prep *p = dt_calloc(1, sizeof *p);
    if (!p) return prep_failed(NULL, dt_fail(DT_E_NOMEM, "a call: out of host memory"));
    p->op = op;
    p->info = dt_op_get_info(op);
    if (!p->info) return prep_failed(p, dt_fail(DT_E_INTERNAL, "operator '%.40s' is not in the table", op->sig));
    p->n_params = (uint8_t)p->info->n_params;
    for (int i = 0; i < p->n_params; i++) {
        p->kind[i] = p->info->param[i].kind;
        p->has_tensors |= p->kind[i] == DT_PK_TENSOR || p->kind[i] == DT_PK_TENSORS;
        s = number_default(p, i);
        if (s) return prep_failed(p, s);
    }
    p->next = *slot;
    *slot = p;
    return p;
}

static bool none_default(const dt_param *q) { return q->text && !strcmp(q->text, "None"); }

static void set_none(const dt_param *q, dt_arg *out) {
    *out = (dt_arg){.kind = DT_ARG_NONE, .given = true};
    if (q->kind == DT_PK_INT) out->i = DT_NO_INT;
    if (q->kind == DT_PK_FLOAT) out->f = NAN;
    if (q->kind == DT_PK_DTYPE) out->i = DT_DTYPE_NONE;
    if (q->kind == DT_PK_INTS) out->n = -1;
}

static void set_default(const dt_param *q, dt_arg *out) {
    *out = (dt_arg){.given = false};
    switch (q->kind) {
    case DT_PK_INT:
        out->kind = DT_ARG_INT;
        out->i = (int64_t)q->num;
        break;
    case DT_PK_BOOL:
        out->kind = DT_ARG_BOOL;
        out->i = q->num != 0;
        break;
    case DT_PK_FLOAT:
        out->kind = DT_ARG_FLOAT;
        out->f = q->num;
        break;
    case DT_PK_STR:
        out->kind = DT_ARG_STR;
        out->s = q->text;
        break;
    case DT_PK_DTYPE:
        out->kind = DT_ARG_DTYPE;
        out->i = (int64_t)q->num;
        break;
    default:
        out->kind = DT_ARG_INTS;
        out->n = q->ints.n;
        out->ints = q->ints.v;
    }
}

static dt_status convert_ints(const dt_prep *p, int i, const dt_arg *a, dt_arg *out, int64_t *store) {
    const dt_param *q = &p->info->param[i];
    int n = a->kind == DT_ARG_INTS ? a->n : 1;
    if (n > DT_MAX_INTS) return dt_fail(DT_E_VALUE, "%s(): argument '%s' has %d entries, at most %d are legal", p->info->base, q->name, n, DT_MAX_INTS);
    const int64_t *v = a->kind == DT_ARG_INTS ? a->ints : &a->i;
    if (n == 1 && q->repeat > 1) {
        for (int k = 0; k < q->repeat; k++) store[k] = v[0];
        n = q->repeat;
    } else
        for (int k = 0; k < n; k++) store[k] = v[k];
    *out = (dt_arg){.kind = DT_ARG_INTS, .given = true, .n = n, .ints = store};
    return DT_OK;
}

/* One attribute argument to the parameter's kind; store: room for DT_MAX_INTS. */
static dt_status convert(const dt_prep *p, int i, const dt_arg *a, dt_arg *out, int64_t *store) {
    const dt_param *q = &p->info->param[i];
    if (a->kind == DT_ARG_NONE || (a->kind == DT_ARG_INTS && a->n < 0)) {
        if (!a->given && q->has_default && !none_default(q))
            set_default(q, out);
        else if (q->optional)
            set_none(q, out);
        else
            return dt_arg_type_error(p, i, a);
        return DT_OK;
    }
    *out = *a;
    bool whole = a->kind == DT_ARG_INT || a->kind == DT_ARG_BOOL;
    switch (q->kind) {
    case DT_PK_INT: out->kind = DT_ARG_INT; return whole ? DT_OK : dt_arg_type_error(p, i, a);
    case DT_PK_FLOAT:
        out->kind = DT_ARG_FLOAT;
        if (whole) out->f = (double)a->i;
        return whole || a->kind == DT_ARG_FLOAT ? DT_OK : dt_arg_type_error(p, i, a);
    case DT_PK_BOOL: return a->kind == DT_ARG_BOOL ? DT_OK : dt_arg_type_error(p, i, a);
    case DT_PK_STR:
        if (a->kind != DT_ARG_STR) return dt_arg_type_error(p, i, a);
        out->s = dt_intern(a->s);
        return out->s ? DT_OK : dt_fail(DT_E_NOMEM, "%s(): out of host memory", p->info->base);
    case DT_PK_DTYPE: return a->kind == DT_ARG_DTYPE ? DT_OK : dt_arg_type_error(p, i, a);
    default: return whole || a->kind == DT_ARG_INTS ? convert_ints(p, i, a, out, store) : dt_arg_type_error(p, i, a);
    }
}

static void put(const dt_param *q, const dt_arg *a, char *attr) {
    void *at = attr + q->offset;
    switch (q->kind) {
    case DT_PK_INT: *(int64_t *)at = a->i; break;
    case DT_PK_FLOAT: *(double *)at = a->f; break;
    case DT_PK_BOOL: *(bool *)at = a->i != 0; break;
    case DT_PK_STR: *(const char **)at = a->kind == DT_ARG_NONE ? NULL : a->s; break;
    case DT_PK_DTYPE: *(int32_t *)at = (int32_t)a->i; break;
    default: {
        dt_ints *s = at;
        s->n = a->n;
        if (a->n > 0) memcpy(s->v, a->ints, (size_t)a->n * sizeof *s->v);
    }
    }
}

dt_status dt_args_decode(const dt_prep *p, const dt_args *args, void *attr) {
    int64_t store[DT_MAX_INTS];
    for (int i = 0; i < p->n_params; i++) {
        if (p->kind[i] < DT_PK_INT || p->kind[i] > DT_PK_INTS) continue;
        dt_arg a;
        DT_TRY(convert(p, i, &args->a[i], &a, store));
        put(&p->info->param[i], &a, attr);
    }
    return DT_OK;
}

/* Inputs: is the kind legal for the parameter? */
static dt_status check_input(const dt_prep *p, int i, const dt_arg *a) {
    const dt_param *q = &p->info->param[i];
    bool number = a->kind >= DT_ARG_FLOAT && a->kind <= DT_ARG_BOOL;
    bool ok = a->kind == DT_ARG_NONE     ? q->optional || q->has_default
              : q->kind == DT_PK_TENSOR  ? a->kind == DT_ARG_TENSOR
              : q->kind == DT_PK_TENSORS ? a->kind == DT_ARG_TENSORS
                                         : number || a->kind == DT_ARG_TENSOR;
    return ok ? DT_OK : dt_arg_type_error(p, i, a);
}

dt_status dt_args_fill(const dt_prep *p, const dt_args *args, dt_args *full, dt_ints_store *store) {
    *full = *args;
    for (int i = 0; i < p->n_params; i++) {
        dt_arg *a = &full->a[i];
        if (p->kind[i] >= DT_PK_INT && p->kind[i] <= DT_PK_INTS)
            DT_TRY(convert(p, i, &args->a[i], a, store->v[i]));
        else if (p->kind[i] != DT_PK_GENERATOR) {
            DT_TRY(check_input(p, i, &args->a[i]));
            if (a->kind != DT_ARG_NONE || !p->def_meta[i] || a->given) continue;
            a->kind = p->def_meta[i]->dtype == DT_float64 ? DT_ARG_FLOAT : p->def_meta[i]->dtype == DT_bool ? DT_ARG_BOOL : DT_ARG_INT;
            memcpy(&a->i, &p->def_word[i], 8);
        }
    }
    return DT_OK;
}

dt_arg *dt_arg_named(const dt_op *op, dt_args *args, const char *name) {
    const dt_prep *p = dt_prep_get(op);
    for (int i = 0; p && i < p->n_params; i++)
        if (!strcmp(p->info->param[i].name, name)) return &args->a[i];
    return NULL;
}

void dt_args_of_call(const dt_call *c, dt_args *args) {
    const dt_prep *p = dt_prep_get(c->op);
    *args = (dt_args){.spec = c->op->flags & (DT_F_SPEC | DT_F_FACTORY) ? c->spec : NULL};
    for (int i = 0; p && i < p->n_params; i++) {
        if (p->kind[i] < DT_PK_INT || p->kind[i] > DT_PK_INTS) continue;
        const char *at = (const char *)c->attr + p->info->param[i].offset;
        dt_arg *a = &args->a[i];
        if (p->kind[i] == DT_PK_INT)
            dt_arg_int(a, *(const int64_t *)at);
        else if (p->kind[i] == DT_PK_FLOAT)
            dt_arg_float(a, *(const double *)at);
        else if (p->kind[i] == DT_PK_BOOL)
            dt_arg_bool(a, *(const bool *)at);
        else if (p->kind[i] == DT_PK_STR)
            dt_arg_str(a, *(const char *const *)at);
        else if (p->kind[i] == DT_PK_DTYPE)
            dt_arg_dtype(a, *(const int32_t *)at);
        else
            dt_arg_dims(a, (dt_dims){((const dt_ints *)at)->n, ((const dt_ints *)at)->v});
    }
}
