/* Einstein summation, composed: operands are contracted from left to right, each pair as one batched matrix product.
 *
 * A label is 0 … 51 for a letter, 52 + i for the i-th ellipsis dimension from the right. An operand is a tensor and the label of each of its
 * dimensions (no label twice: diagonals are taken first). For a pair (a, b) a label is
 *
 *   in both, needed later  -> batch        in both, not needed    -> summed by the product
 *   in one,  needed later  -> free         in one,  not needed    -> summed before
 *
 * "needed later": in the output or in an operand still to come. Size 1 broadcasts: such a dimension is dropped where the other is larger. */
#include <ctype.h>
#include <string.h>

#include "dtorch_ops.h"
#include "ops/compose.h"

enum { LETTERS = 52, LABELS = LETTERS + DT_MAX_DIM };

typedef struct term {
    dt_tensor *t;
    int n;
    int8_t label[DT_MAX_DIM];
} term;

static bool bad(dt_scope *s, const char *what, const char *equation) {
    dt_scope_fail(s, dt_fail(DT_E_SHAPE, "einsum(): %s, in '%s'", what, equation));
    return false;
}
static int letter(char c) { return c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? c - 'a' + 26 : -1; }
static bool has(const term *a, int label) { return memchr(a->label, label, (size_t)a->n) != NULL; }
static int find(const term *a, int label) {
    for (int i = 0; i < a->n; i++)
        if (a->label[i] == label) return i;
    return -1;
}

/* The labels of one operand's subscripts; *ell: how many dimensions its ellipsis stands for (-1: it has none). */
static bool parse_operand(dt_scope *s, const char **p, const char *eq, term *a, int *ell) {
    int letters = 0, at = -1, nd = dt_ndim(a->t);
    int8_t before[64];
    for (; **p && **p != ',' && strncmp(*p, "->", 2); ++*p) {
        if (isspace((unsigned char)**p)) continue;
        if (**p == '.') {
            if (strncmp(*p, "...", 3) || at >= 0) return bad(s, "an ellipsis is three dots, once an operand", eq);
            at = letters;
            *p += 2;
        } else if (letter(**p) < 0) {
            return bad(s, "subscripts must be letters [a-zA-Z]", eq);
        } else if (letters == DT_MAX_DIM) {
            return bad(s, "an operand has too many subscripts", eq);
        } else {
            before[letters++] = (int8_t)letter(**p);
        }
    }
    *ell = at < 0 ? -1 : nd - letters;
    if (at < 0 ? letters != nd : letters > nd) return bad(s, "the number of subscripts does not match the number of dimensions of an operand", eq);
    a->n = 0;
    for (int i = 0; i <= letters; i++) {
        if (i == at)
            for (int k = nd - letters - 1; k >= 0; k--) a->label[a->n++] = (int8_t)(LETTERS + k);
        if (i < letters) a->label[a->n++] = before[i];
    }
    return true;
}

/* The output's labels: what follows "->", or the ellipsis and every letter that appears once, in order. */
static bool parse_output(dt_scope *s, const char *p, const char *eq, const int *uses, int ell, term *o) {
    o->n = 0;
    bool explicit = *p != 0;
    if (!explicit)
        for (int k = ell - 1; k >= 0; k--) o->label[o->n++] = (int8_t)(LETTERS + k);
    for (int l = 0; !explicit && l < LETTERS; l++)
        if (uses[l] == 1) {
            if (o->n == DT_MAX_DIM) return bad(s, "the result has too many dimensions", eq);
            o->label[o->n++] = (int8_t)l;
        }
    for (p += explicit ? 2 : 0; *p; p++) {
        if (isspace((unsigned char)*p)) continue;
        if (!strncmp(p, "...", 3)) {
            for (int k = ell - 1; k >= 0; k--) {
                if (o->n == DT_MAX_DIM) return bad(s, "the result has too many dimensions", eq);
                o->label[o->n++] = (int8_t)(LETTERS + k);
            }
            p += 2;
            continue;
        }
        int l = letter(*p);
        if (l < 0) return bad(s, "subscripts must be letters [a-zA-Z]", eq);
        if (!uses[l]) return bad(s, "the output has a subscript that no operand has", eq);
        if (has(o, l)) return bad(s, "the output has a subscript twice", eq);
        if (o->n == DT_MAX_DIM) return bad(s, "the result has too many dimensions", eq);
        o->label[o->n++] = (int8_t)l;
    }
    return true;
}

static void drop(term *a, int i) {
    memmove(a->label + i, a->label + i + 1, (size_t)(a->n - i - 1));
    a->n--;
}

/* Repeated labels: diagonals. dt_diagonal moves the diagonal to the end. */
static bool diagonals(dt_scope *s, term *a, const char *eq) {
    for (int i = 0; i < a->n; i++)
        for (int j = i + 1; j < a->n; j++) {
            if (a->label[i] != a->label[j]) continue;
            int8_t l = a->label[i];
            if (!a->t) return false;
            if (dt_shape(a->t)[i] != dt_shape(a->t)[j]) return bad(s, "a repeated subscript has two sizes", eq);
            a->t = dt_diagonal(s, a->t, 0, i, j);
            drop(a, j);
            drop(a, i);
            a->label[a->n++] = l;
            i = -1;
            break;
        }
    return a->t != NULL;
}

/* Sum out what `keep` does not hold. */
static void reduce(dt_scope *s, term *a, const bool *keep) {
    int64_t dims[DT_MAX_DIM];
    int n = 0, kept = 0;
    for (int i = 0; i < a->n; i++) {
        if (keep[a->label[i]])
            a->label[kept++] = a->label[i];
        else
            dims[n++] = i;
    }
    a->n = kept;
    if (n) a->t = dt_sum(s, a->t, ((dt_dims){n, dims}), false, DT_DTYPE_NONE);
}

/* Dimensions of size 1 that are larger in the other operand. */
static void squeeze_ones(dt_scope *s, term *a, const term *b) {
    for (int i = a->n - 1; i >= 0 && a->t && b->t; i--) {
        int j = find(b, a->label[i]);
        if (j < 0 || dt_shape(a->t)[i] != 1 || dt_shape(b->t)[j] == 1) continue;
        a->t = dt_squeeze(s, a->t, DT_DIMS(i));
        drop(a, i);
    }
}

/* a's dimensions in the order of `order`, merged into the three groups of sizes g. */
static dt_tensor *grouped(dt_scope *s, const term *a, const int8_t *order, const int *g) {
    int64_t perm[DT_MAX_DIM], shape[3] = {1, 1, 1};
    bool moved = false;
    for (int i = 0, k = 0; k < 3; k++)
        for (int j = 0; j < g[k]; j++, i++) {
            perm[i] = find(a, order[i]);
            moved |= perm[i] != i;
            shape[k] *= dt_shape(a->t)[perm[i]];
        }
    dt_tensor *t = moved ? dt_permute(s, a->t, ((dt_dims){a->n, perm})) : a->t;
    return g[0] == 1 && g[1] == 1 && g[2] == 1 ? t : dt_reshape(s, t, ((dt_dims){3, shape}));
}

static bool pair(dt_scope *s, term *a, term *b, const bool *later, const char *eq) {
    bool keep_a[LABELS], keep_b[LABELS];
    squeeze_ones(s, a, b);
    squeeze_ones(s, b, a);
    for (int l = 0; l < LABELS; l++) {
        keep_a[l] = later[l] || has(b, l);
        keep_b[l] = later[l] || has(a, l);
    }
    reduce(s, a, keep_a);
    reduce(s, b, keep_b);
    if (!a->t || !b->t) return false;
    int8_t batch[DT_MAX_DIM], sum[DT_MAX_DIM], free_a[DT_MAX_DIM], free_b[DT_MAX_DIM], oa[DT_MAX_DIM], ob[DT_MAX_DIM];
    int nb = 0, ns = 0, na = 0, nc = 0;
    int64_t shape[3 * DT_MAX_DIM];
    for (int i = 0; i < a->n; i++) {
        int8_t l = a->label[i];
        int j = find(b, l);
        if (j >= 0 && dt_shape(a->t)[i] != dt_shape(b->t)[j]) return bad(s, "operands do not broadcast: a subscript has two sizes", eq);
        if (j < 0)
            free_a[na++] = l;
        else if (later[l])
            batch[nb++] = l;
        else
            sum[ns++] = l;
    }
    for (int i = 0; i < b->n; i++)
        if (!has(a, b->label[i])) free_b[nc++] = b->label[i];
    if (nb + na + nc > DT_MAX_DIM) return bad(s, "an intermediate result has too many dimensions", eq);
    int n = 0;
    term r = {.n = nb + na + nc};
    const int8_t *parts[3] = {batch, free_a, free_b};
    const int sizes[3] = {nb, na, nc};
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < sizes[k]; i++, n++) {
            r.label[n] = parts[k][i];
            int at = find(a, parts[k][i]);
            shape[n] = at >= 0 ? dt_shape(a->t)[at] : dt_shape(b->t)[find(b, parts[k][i])];
        }
    memcpy(oa, batch, (size_t)nb), memcpy(oa + nb, free_a, (size_t)na), memcpy(oa + nb + na, sum, (size_t)ns);
    memcpy(ob, batch, (size_t)nb), memcpy(ob + nb, sum, (size_t)ns), memcpy(ob + nb + ns, free_b, (size_t)nc);
    dt_tensor *p = dt_matmul(s, grouped(s, a, oa, (const int[]){nb, na, ns}), grouped(s, b, ob, (const int[]){nb, ns, nc}));
    r.t = nb == 1 && na == 1 && nc == 1 ? p : dt_reshape(s, p, ((dt_dims){r.n, shape}));
    *a = r;
    return r.t != NULL;
}

static bool parse(dt_scope *s, const char *eq, int n, term *v, term *o) {
    const char *p = eq;
    int uses[LETTERS] = {0}, widest = 0;
    for (int i = 0; i < n; i++) {
        int ell;
        if (!parse_operand(s, &p, eq, &v[i], &ell)) return false;
        if (ell > widest) widest = ell;
        for (int k = 0; k < v[i].n; k++)
            if (v[i].label[k] < LETTERS) uses[v[i].label[k]]++;
        if (*p == ',' && i < n - 1)
            p++;
        else if (*p == ',' || i < n - 1)
            return bad(s, "the number of operands does not match the equation", eq);
    }
    return parse_output(s, p, eq, uses, widest, o);
}

static void compose_einsum(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    enum { MOST = 32 };
    const char *eq = dt_arg_get_str(a, 0, "");
    int n = a->a[1].kind == DT_ARG_TENSORS ? a->a[1].n : 0;
    term v[MOST], o;
    *n_out = 1;
    if (n < 1 || n > MOST) {
        bad(s, n < 1 ? "at least one operand is needed" : "too many operands", eq);
        return;
    }
    for (int i = 0; i < n; i++) v[i].t = a->a[1].list[i];
    if (!parse(s, eq, n, v, &o)) return;
    for (int i = 0; i < n; i++)
        if (!diagonals(s, &v[i], eq)) return;
    for (int i = 1; i < n; i++) {
        bool later[LABELS] = {false};
        for (int k = 0; k < o.n; k++) later[o.label[k]] = true;
        for (int j = i + 1; j < n; j++)
            for (int k = 0; k < v[j].n; k++) later[v[j].label[k]] = true;
        if (!pair(s, &v[0], &v[i], later, eq)) return;
    }
    bool keep[LABELS] = {false};
    for (int k = 0; k < o.n; k++) keep[o.label[k]] = true;
    reduce(s, &v[0], keep);
    int64_t perm[DT_MAX_DIM];
    for (int k = 0; k < o.n; k++)
        if ((perm[k] = find(&v[0], o.label[k])) < 0) {
            bad(s, "an output subscript is missing", eq);
            return;
        }
    dt_compose_out(dt_permute(s, v[0].t, ((dt_dims){o.n, perm})), out, n_out);
}

const dt_op dt_op_einsum = {
    .sig = "einsum(str equation, Tensor[]... operands) -> Tensor",
    .doc = "Sums of products by Einstein's convention: 'ij,jk->ik'. Subscripts are letters and '...'; without '->' the letters that appear once are kept, in "
           "alphabetical order. Operands are contracted from left to right. RuntimeError if the equation does not fit the operands.",
    .where = DT_FN,
    .compose = compose_einsum,
};
