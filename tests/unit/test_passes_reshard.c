/* Redistribution plans, checked by carrying them out on plain arrays: every device of the target must end up with the values that the
 * global tensor has in its box, from any placements to any others, on one mesh or between two. */
#include "passes/passes.h"
#include "test.h"

static uint32_t rng = 12345;
static int rnd(int n) {
    rng = rng * 1664525u + 1013904223u;
    return (int)((rng >> 8) % (uint32_t)n);
}

static const dt_mesh *mesh(int nd, const int64_t *dims, int first) {
    dt_device dev[64];
    int n = 1;
    for (int i = 0; i < nd; i++) n *= (int)dims[i];
    for (int i = 0; i < n; i++) dev[i] = dt_device_make(DT_CPU, (uint32_t)(first + i));
    const dt_mesh *m = NULL;
    if (dt_mesh_intern(nd, dims, dev, NULL, &m)) TEST_FAIL("%s", dt_error_message());
    return m;
}

/* The value that device pos holds at a global index, with its share of partials: shares add up to the global value. */
static double held(const dt_meta *m, int pos, int64_t index) {
    double value = (double)(index * 7 % 101) + 1, copies = 1, rank = 0;
    int64_t c[DT_MAX_MESH_DIM];
    dt_mesh_coords(m->mesh, pos, c);
    for (int k = 0; k < m->mesh->ndim; k++)
        if (m->place[k].kind == DT_PARTIAL) {
            rank = rank * (double)m->mesh->dim[k] + (double)c[k];
            copies *= (double)m->mesh->dim[k];
        }
    return rank == 0 ? value - (copies - 1) * copies / 2 : rank; /* rank r > 0 holds r, rank 0 the rest */
}

static int64_t linear(const dt_meta *m, const int64_t *at) {
    int64_t i = 0;
    for (int d = 0; d < m->ndim; d++) i = i * m->shape[d] + at[d];
    return i;
}

static double carry_out(const dt_meta *from, const dt_reshard *r, int pos, const int64_t *at, int *found) {
    double v = 0;
    for (int p = 0; p < r->dev[pos].n; p++) {
        const dt_piece *q = &r->dev[pos].piece[p];
        bool in = true;
        for (int d = 0; d < from->ndim; d++) in &= at[d] >= q->box.lo[d] && at[d] < q->box.lo[d] + q->box.len[d];
        if (!in) continue;
        ++*found;
        for (int s = 0; s < q->n_src; s++) v += held(from, q->src + r->step[s], linear(from, at));
    }
    return v;
}

static double sum_over_partials(const dt_meta *from, const dt_meta *to, const dt_reshard *r, int pos, const int64_t *at, int *found);

static void check(const dt_meta *from, const dt_meta *to) {
    dt_arena a;
    dt_arena_init(&a);
    dt_reshard r;
    if (dt_reshard_build(from, to, &a, &r)) {
        TEST_FAIL("%s", dt_error_message());
        return;
    }
    for (int pos = 0; pos < to->mesh->n; pos++) {
        dt_box box;
        dt_layout_box(to, pos, &box);
        int64_t n = dt_box_numel(&box, to->ndim), at[DT_MAX_DIM];
        for (int64_t i = 0; i < n; i++) {
            int64_t rest = i;
            for (int d = to->ndim - 1; d >= 0; d--) {
                int64_t l = rest % box.len[d], run = box.len[d] / box.rows[d];
                at[d] = box.lo[d] + l / run * box.step[d] + l % run;
                rest /= box.len[d];
            }
            int found = 0;
            double want = (double)(linear(to, at) * 7 % 101) + 1, got = sum_over_partials(from, to, &r, pos, at, &found);
            if (got != want) {
                DT_STR(s, 512);
                dt_meta_print(from, &s);
                dt_str_add(&s, " -> ");
                dt_meta_print(to, &s);
                TEST_FAIL("%s: device %d, element %lld: %g, want %g (%d pieces)", s.buf, pos, (long long)i, got, want, found);
                dt_arena_fini(&a);
                return;
            }
        }
    }
    dt_arena_fini(&a);
}

/* What the whole tensor is at `at`, seen from device pos: the shares of all devices along the target's partial dimensions together. */
static double sum_over_partials(const dt_meta *from, const dt_meta *to, const dt_reshard *r, int pos, const int64_t *at, int *found) {
    int64_t c[DT_MAX_MESH_DIM], other[DT_MAX_MESH_DIM];
    dt_mesh_coords(to->mesh, pos, c);
    double v = 0;
    for (int p = 0; p < to->mesh->n; p++) {
        bool same = true;
        dt_mesh_coords(to->mesh, p, other);
        for (int k = 0; k < to->mesh->ndim; k++) same &= to->place[k].kind == DT_PARTIAL || other[k] == c[k];
        if (same) v += carry_out(from, r, p, at, found);
    }
    return v;
}

static const dt_meta *random_meta(const dt_mesh *m, const dt_type *t) {
    dt_placement p[DT_MAX_MESH_DIM] = {{0}};
    for (int k = 0; k < m->ndim; k++) {
        int w = rnd(4);
        p[k] = w == 0 ? DT_R : w == 1 ? DT_P : t->ndim ? DT_S(rnd(t->ndim)) : DT_R;
    }
    int rows = 1 + rnd(4); /* some of the shards strided, where the size allows it */
    for (int k = 0; k < m->ndim; k++)
        if (p[k].kind == DT_SHARD && rnd(2) && t->shape[p[k].dim] % rows == 0) p[k] = DT_S_ROWS(p[k].dim, rows);
    const dt_meta *r = NULL;
    if (dt_meta_intern(t, m, p, &r)) TEST_FAIL("%s", dt_error_message());
    return r;
}

TEST(any_placements_to_any_on_one_mesh) {
    static const int64_t dims[][3] = {{2, 0, 0}, {3, 0, 0}, {4, 0, 0}, {2, 2, 0}, {3, 2, 0}, {2, 2, 2}};
    static const int nd[] = {1, 1, 1, 2, 2, 3};
    for (int i = 0; i < 1500; i++) {
        int k = rnd(6);
        const dt_mesh *m = mesh(nd[k], dims[k], 0);
        dt_type t = {DT_float32, rnd(4), {rnd(6), 1 + rnd(6), 1 + rnd(5)}};
        check(random_meta(m, &t), random_meta(m, &t));
    }
}

TEST(between_meshes) {
    for (int i = 0; i < 500; i++) {
        const dt_mesh *a = mesh(2, (int64_t[]){1 + rnd(3), 1 + rnd(3)}, 0), *b = mesh(1, (int64_t[]){1 + rnd(4)}, rnd(6));
        dt_type t = {DT_float32, 1 + rnd(3), {1 + rnd(6), 1 + rnd(6), 1 + rnd(5)}};
        check(random_meta(a, &t), random_meta(b, &t));
    }
}

TEST(what_is_local_is_seen_as_local) {
    dt_arena a;
    dt_arena_init(&a);
    const dt_mesh *m = mesh(1, (int64_t[]){4}, 0);
    dt_type t = {DT_float32, 2, {5, 10}};
    const dt_meta *rep, *shard, *part;
    dt_placement p[3] = {DT_R, DT_S(0), DT_P};
    CHECK_INT(dt_meta_intern(&t, m, &p[0], &rep) || dt_meta_intern(&t, m, &p[1], &shard) || dt_meta_intern(&t, m, &p[2], &part), 0);
    dt_reshard r;
    CHECK_INT(dt_reshard_build(rep, shard, &a, &r), DT_OK);
    CHECK(r.local);
    CHECK_INT(dt_reshard_build(rep, part, &a, &r), DT_OK);
    CHECK(r.local);
    CHECK_INT(dt_reshard_build(shard, rep, &a, &r), DT_OK);
    CHECK(!r.local && !strcmp(r.kind, "all_gather"));
    CHECK_INT(dt_reshard_build(part, shard, &a, &r), DT_OK);
    CHECK(!r.local && !strcmp(r.kind, "reduce_scatter"));
    CHECK_INT(dt_reshard_build(part, rep, &a, &r), DT_OK);
    CHECK(r.all_reduce && !strcmp(r.kind, "all_reduce"));
    dt_arena_fini(&a);
}
