/* The op table at run time: parses every signature once, checks every literal, finds ops by name. See op.h for the grammar.
 *
 * Everything here is written by dt_ops_init and read-only afterwards; a mistake in a literal is an error at load, not at a call. */
#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/op.h"

static const dt_op *const table[] = {
#define DT_OP(name) &dt_op_##name,
#include "ops/ops.def"
#undef DT_OP
    NULL};
enum { N_OPS = sizeof table / sizeof *table - 1 };
static dt_op_info infos[N_OPS + 1];

/* op -> info: a small open-addressed table keyed by the literal's address. */
enum { INDEX_SIZE = 4096 };
static struct {
    const dt_op *op;
    dt_op_info *info;
} by_op[INDEX_SIZE];
static uint64_t table_hash;

static size_t index_of(const dt_op *op) { return (size_t)(dt_hash_mix((uint64_t)(uintptr_t)op, 1) % INDEX_SIZE); }

const dt_op_info *dt_op_get_info(const dt_op *op) {
    for (size_t i = index_of(op); by_op[i].op; i = (i + 1) % INDEX_SIZE)
        if (by_op[i].op == op) return by_op[i].info;
    return NULL;
}

const char *dt_op_name(const dt_op *op) {
    const dt_op_info *i = dt_op_get_info(op);
    return i ? i->base : "?";
}

int dt_ops_count(void) { return N_OPS; }
const dt_op *dt_ops_at(int id) { return id >= 0 && id < N_OPS ? table[id] : NULL; }
uint64_t dt_ops_hash(void) { return table_hash; }

const dt_op *dt_op_find(const char *name) {
    for (int i = 0; i < N_OPS; i++)
        if (!strcmp(infos[i].name, name)) return table[i];
    return NULL;
}

/* ---- interned strings -------------------------------------------------------------------------------------------------------- */
typedef struct text_entry {
    dt_hlink link;
    char text[];
} text_entry;
static dt_htab texts;
static pthread_mutex_t texts_lock = PTHREAD_MUTEX_INITIALIZER;

const char *dt_intern(const char *text) {
    size_t n = strlen(text) + 1;
    uint64_t h = dt_hash_bytes(text, n, 7);
    const char *found = NULL;
    pthread_mutex_lock(&texts_lock);
    bool ok = texts.slot || !dt_htab_init(&texts, 256);
    for (dt_hlink *l = ok ? dt_htab_first(&texts, h) : NULL; l && !found; l = l->next)
        if (l->hash == h && !strcmp(((text_entry *)l)->text, text)) found = ((text_entry *)l)->text;
    if (ok && !found) {
        text_entry *e = dt_malloc(sizeof *e + n);
        if (e) {
            memcpy(e->text, text, n);
            if (dt_htab_add(&texts, &e->link, h) == DT_OK) found = e->text;
        }
    }
    pthread_mutex_unlock(&texts_lock);
    return found;
}

/* ---- the parser -------------------------------------------------------------------------------------------------------------- */
typedef struct cursor {
    const char *p;
    const dt_op *op;
} cursor;

static dt_status bad(const cursor *c, const char *what) { return dt_fail(DT_E_INTERNAL, "op table: '%s': %s at '%.20s'", c->op->sig, what, c->p); }
static void spaces(cursor *c) {
    while (*c->p == ' ') c->p++;
}
static bool eat(cursor *c, const char *text) {
    spaces(c);
    size_t n = strlen(text);
    if (strncmp(c->p, text, n)) return false;
    c->p += n;
    return true;
}
static bool word(cursor *c, char *out, size_t cap) {
    spaces(c);
    size_t n = 0;
    while (isalnum((unsigned char)*c->p) || *c->p == '_' || *c->p == '.') {
        if (n + 1 < cap) out[n++] = *c->p;
        c->p++;
    }
    out[n] = 0;
    return n > 0;
}

static dt_status parse_type(cursor *c, dt_param *p) {
    static const struct {
        const char *name;
        uint8_t kind;
    } kinds[] = {{"Tensor", DT_PK_TENSOR}, {"Value", DT_PK_VALUE}, {"Scalar", DT_PK_SCALAR},
                 {"int", DT_PK_INT},       {"float", DT_PK_FLOAT}, {"bool", DT_PK_BOOL},
                 {"str", DT_PK_STR},       {"dtype", DT_PK_DTYPE}, {"Generator", DT_PK_GENERATOR}};
    char w[24];
    if (!word(c, w, sizeof w)) return bad(c, "expected a type");
    size_t k = 0, n = sizeof kinds / sizeof *kinds;
    while (k < n && strcmp(kinds[k].name, w)) k++;
    if (k == n) return bad(c, "unknown type");
    p->kind = kinds[k].kind;
    for (;;) {
        if (eat(c, "?"))
            p->optional = true;
        else if (eat(c, "!"))
            p->written = true;
        else if (eat(c, "..."))
            p->variadic = true;
        else if (*c->p == '[') {
            c->p++;
            if (p->kind == DT_PK_TENSOR)
                p->kind = DT_PK_TENSORS;
            else if (p->kind == DT_PK_INT)
                p->kind = DT_PK_INTS;
            else
                return bad(c, "only Tensor[] and int[] exist");
            p->repeat = (uint8_t)strtol(c->p, (char **)&c->p, 10);
            if (!eat(c, "]")) return bad(c, "expected ]");
        } else
            return DT_OK;
    }
}

static dt_status parse_list_default(cursor *c, dt_param *p) {
    while (!eat(c, "]")) {
        if (p->ints.n >= DT_MAX_INTS) return bad(c, "list too long");
        p->ints.v[p->ints.n++] = strtoll(c->p, (char **)&c->p, 10);
        eat(c, ",");
        spaces(c);
        if (!*c->p) return bad(c, "expected ]");
    }
    return DT_OK;
}

static dt_status parse_default(cursor *c, dt_param *p) {
    const char *start = c->p;
    p->has_default = true;
    if (eat(c, "None")) {
        p->ints.n = -1;
        p->num = p->kind == DT_PK_FLOAT ? NAN : 0;
        if (p->kind == DT_PK_DTYPE) p->num = DT_DTYPE_NONE;
        p->optional = true;
    } else if (eat(c, "True"))
        p->num = 1;
    else if (eat(c, "False"))
        p->num = 0;
    else if (eat(c, "'")) {
        char w[64];
        size_t n = 0;
        while (*c->p && *c->p != '\'' && n + 1 < sizeof w) w[n++] = *c->p++;
        w[n] = 0;
        if (!eat(c, "'") || !(p->text = dt_intern(w))) return bad(c, "bad text");
        return DT_OK;
    } else if (eat(c, "["))
        DT_TRY(parse_list_default(c, p));
    else {
        char *end;
        p->num = strtod(c->p, &end);
        if (end == c->p) return bad(c, "bad default");
        c->p = end;
        if (p->kind == DT_PK_INTS) { /* int[2] x=1 */
            p->ints.n = p->repeat ? p->repeat : 1;
            for (int i = 0; i < p->ints.n; i++) p->ints.v[i] = (int64_t)p->num;
        }
    }
    char text[64];
    snprintf(text, sizeof text, "%.*s", (int)(c->p - start), start);
    p->text = dt_intern(text);
    return p->text ? DT_OK : dt_fail(DT_E_NOMEM, "op table: out of host memory");
}

static bool is_input(const dt_param *p) { return p->kind <= DT_PK_SCALAR; }

static dt_status bind_field(cursor *c, dt_param *p) {
    if (is_input(p) || p->kind == DT_PK_GENERATOR || c->op->compose) return DT_OK;
    for (size_t i = 0; i < sizeof c->op->attrs.field / sizeof *c->op->attrs.field && c->op->attrs.field[i].name; i++)
        if (!strcmp(c->op->attrs.field[i].name, p->name)) {
            p->offset = c->op->attrs.field[i].offset;
            return DT_OK;
        }
    return dt_fail(DT_E_INTERNAL, "op table: '%s': attribute '%s' has no field", c->op->sig, p->name);
}

static dt_status parse_params(cursor *c, dt_op_info *info) {
    bool kwonly = false;
    if (!eat(c, "(")) return bad(c, "expected (");
    while (!eat(c, ")")) {
        if (eat(c, "*")) {
            kwonly = true;
            eat(c, ",");
            continue;
        }
        if (info->n_params == DT_MAX_PARAMS) return bad(c, "too many parameters");
        dt_param *p = &info->param[info->n_params];
        p->kwonly = kwonly;
        DT_TRY(parse_type(c, p));
        if (!word(c, p->name, sizeof p->name)) return bad(c, "expected a name");
        if (eat(c, "=")) DT_TRY(parse_default(c, p));
        if (p->kind == DT_PK_TENSORS) info->list_param = info->n_params;
        if (is_input(p) && p->kind != DT_PK_TENSORS) info->n_inputs_fixed++;
        info->n_written += p->written;
        DT_TRY(bind_field(c, p));
        info->n_params++;
        eat(c, ",");
        if (!*c->p) return bad(c, "expected )");
    }
    return DT_OK;
}

static dt_status parse_returns(cursor *c, dt_op_info *info) {
    if (!eat(c, "->")) return bad(c, "expected ->");
    if (eat(c, "Tensor[]")) {
        info->n_returns = -1;
        return DT_OK;
    }
    if (eat(c, "(")) {
        while (!eat(c, ")")) {
            if (!eat(c, "Tensor") || info->n_returns == 4) return bad(c, "expected Tensor");
            word(c, info->ret_name[info->n_returns], sizeof info->ret_name[0]);
            info->n_returns++;
            eat(c, ",");
            if (!*c->p) return bad(c, "expected )");
        }
        return DT_OK;
    }
    info->n_returns = 1;
    return eat(c, "Tensor") ? DT_OK : bad(c, "expected Tensor");
}

static dt_status check(const dt_op *op, const dt_op_info *info) {
    if (op->compose) return DT_OK;
    if (!op->infer) return dt_fail(DT_E_INTERNAL, "op table: %s has no infer", info->name);
    if (!op->place) return dt_fail(DT_E_INTERNAL, "op table: %s has no place", info->name);
    if (!(op->flags & DT_F_LOWERED) && !op->kernels[0].fn && !op->alias) return dt_fail(DT_E_INTERNAL, "op table: %s has no kernel", info->name);
    if (op->saves && !op->grad) return dt_fail(DT_E_INTERNAL, "op table: %s saves tensors but has no grad", info->name);
    return DT_OK;
}

static dt_status load(int id) {
    const dt_op *op = table[id];
    dt_op_info *info = &infos[id];
    cursor c = {op->sig, op};
    info->id = (uint16_t)id;
    info->list_param = -1;
    if (!word(&c, info->name, sizeof info->name)) return bad(&c, "expected a name");
    memcpy(info->base, info->name, sizeof info->base);
    char *dot = strchr(info->base, '.');
    if (dot) *dot = 0;
    DT_TRY(parse_params(&c, info));
    DT_TRY(parse_returns(&c, info));
    DT_TRY(check(op, info));
    table_hash = dt_hash_bytes(op->sig, strlen(op->sig), table_hash);
    size_t i = index_of(op);
    while (by_op[i].op) i = (i + 1) % INDEX_SIZE;
    by_op[i].op = op;
    by_op[i].info = info;
    return DT_OK;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static dt_status init_status;
static char init_message[256];
static void init(void) {
    for (int i = 0; i < N_OPS && !init_status; i++) init_status = load(i);
    if (init_status) snprintf(init_message, sizeof init_message, "%s", dt_error_message());
}

dt_status dt_ops_init(void) {
    pthread_once(&once, init);
    return init_status ? dt_fail(init_status, "%s", init_message) : DT_OK;
}
