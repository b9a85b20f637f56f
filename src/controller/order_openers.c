/* Which segments are openers: forwards whose saved values a gradient comes back to. See order.c.
 *
 * A segment opens if another one on its mesh reads from it both directly and by way of other meshes. It is recognised when the second one is closed; from then on, until the
 * next flush, so is every segment of the same calls. Nothing is learnt for longer: the order is a function of the calls since the flush.
 * Controller thread only. */
#include <string.h>

#include "controller/order_segments.h"

enum { KINDS = 1 << 16, VISITS = 64 };

typedef struct kind_limit {
    uint64_t kind;
    uint32_t limit, closer; /* learnt from that segment: counts until the next flush */
} kind_limit;

segment dt_the_ring[SEGMENTS];
struct dt_order_window dt_the_window = {.next = 1, .settled = 1};
static kind_limit kinds[KINDS];
static dt_visit visited[VISITS];
static uint32_t n_visited;

dt_visit *dt_visit_of(const dt_mesh *m) {
    for (uint32_t i = 0; i < n_visited; i++)
        if (visited[i].mesh == m) return &visited[i];
    return NULL;
}

void dt_visit_note(const segment *s) {
    if (n_visited < VISITS && !dt_visit_of(s->mesh)) visited[n_visited++] = (dt_visit){.mesh = s->mesh, .first = s->id};
}

void dt_visits_reset(void) { n_visited = 0; }

/* ---- openers --------------------------------------------------------------------------------------------------------------------------------------- */
uint32_t dt_opener_limit(uint64_t kind) {
    const kind_limit *k = &kinds[kind % KINDS];
    return k->kind == kind && k->closer >= dt_the_window.settled ? k->limit : 0;
}

bool dt_mesh_encloses(const dt_mesh *a, const dt_mesh *b) {
    enum { KNOWN = 256 };
    static struct {
        const dt_mesh *a, *b;
        bool yes;
    } known[KNOWN];
    uint64_t h = dt_hash_mix((uint64_t)(uintptr_t)a, (uint64_t)(uintptr_t)b) % KNOWN;
    if (known[h].a != a || known[h].b != b) {
        bool yes = a->n > b->n;
        for (int i = 0; yes && i < b->n; i++) yes = dt_mesh_find(a, b->dev[i]) >= 0;
        known[h].a = a;
        known[h].b = b;
        known[h].yes = yes;
    }
    return known[h].yes;
}

bool dt_visit_openers(const dt_mesh *m) {
    const dt_visit *v = dt_visit_of(m);
    return v && v->openers;
}

void dt_opener_seen(const segment *x) {
    dt_visit *v = dt_visit_of(x->mesh);
    if (v) v->openers = true;
}

bool dt_segment_again(const segment *s) {
    const dt_visit *v = dt_visit_of(s->mesh);
    return v && v->first < s->run;
}

static void learn_opener(const segment *x, uint32_t limit, uint32_t closer) {
    dt_opener_seen(x);
    for (uint32_t id = x->run; id < closer; id++) { /* all of the stay */
        segment *s = dt_segment_at(id);
        if (!s || s->run != x->run || s->mesh != x->mesh || s->side || s->cost <= 0) continue;
        kinds[s->kind % KINDS] = (kind_limit){s->kind, limit, closer};
        s->closer = closer;
    }
}

/* Does s read from x, or from another segment of the same stay? Long stays are cut where it pleases the plan cache. */
static bool depends_on(const segment *s, const segment *x) {
    for (uint32_t i = 0; i < s->n_dep; i++) {
        const segment *d = dt_segment_at(s->dep[i]);
        if (d == x || (d && !d->side && d->run == x->run && d->mesh == x->mesh)) return true;
    }
    return false;
}

typedef struct mesh_set {
    const dt_mesh *at[64];
    uint32_t n;
} mesh_set;

static void mesh_set_add(mesh_set *l, const dt_mesh *m) {
    uint32_t k = 0;
    while (k < l->n && l->at[k] != m) k++;
    if (k == l->n && k < sizeof l->at / sizeof *l->at) l->at[l->n++] = m;
}

/* What y waits for of what came after x, by way of other meshes: ids into queue (n,), each marked with this walk's number. */
static uint32_t sources_after(const segment *y, const segment *x, uint32_t *queue, uint32_t *mark, uint32_t walk) {
    uint32_t n = 0;
    for (uint32_t id = y->run; id <= y->id; id++) { /* the gradient may have come to an earlier segment of the stay */
        const segment *own = dt_segment_at(id);
        for (uint32_t i = 0; own && own->run == y->run && i < own->n_dep; i++) {
            const segment *z = dt_segment_at(own->dep[i]);
            if (!z || z->side || z->mesh == y->mesh || z->id <= x->id || mark[z->id % SEGMENTS] == walk) continue;
            queue[n++] = z->id;
            mark[z->id % SEGMENTS] = walk;
        }
    }
    for (uint32_t at = 0; at < n; at++) {
        const segment *z = dt_segment_at(queue[at]);
        for (uint32_t i = 0; i < z->n_dep; i++) {
            const segment *q = dt_segment_at(z->dep[i]);
            if (!q || q->side || q->id <= x->id || mark[q->id % SEGMENTS] == walk) continue;
            mark[q->id % SEGMENTS] = walk;
            queue[n++] = q->id;
        }
    }
    return n;
}

/* Of these the ones that come of x, into `of` by walk's number. True: there are some on another mesh. */
static bool come_of(const segment *x, const uint32_t *queue, uint32_t n, uint32_t *of, uint32_t walk) {
    bool back = false, more = true;
    while (more) { /* mostly a segment has a lower id than who reads from it, and was found behind it */
        more = false;
        for (uint32_t at = n; at-- > 0;) {
            const segment *z = dt_segment_at(queue[at]);
            if (of[z->id % SEGMENTS] == walk) continue;
            bool yes = depends_on(z, x);
            for (uint32_t i = 0; !yes && i < z->n_dep; i++) yes = of[z->dep[i] % SEGMENTS] == walk && dt_segment_at(z->dep[i]);
            if (!yes) continue;
            of[z->id % SEGMENTS] = walk;
            more = true;
            back |= z->mesh != x->mesh;
        }
    }
    return back;
}

/* If y depends on x, a direct source of it on its mesh, by way of other meshes as well: the meshes on the way, y's own included. Else 0. What does not come of x, or
 * what y does not wait for, is not on the way: a weight that the first and the last stage share, and its gradient. */
static uint32_t comes_back(const segment *y, const segment *x) {
    static uint32_t queue[SEGMENTS], mark[SEGMENTS], of[SEGMENTS], walk;
    mesh_set way = {{y->mesh}, 1};
    if (!++walk) {
        memset(mark, 0, sizeof mark);
        memset(of, 0, sizeof of);
        walk = 1;
    }
    uint32_t n = sources_after(y, x, queue, mark, walk);
    if (!come_of(x, queue, n, of, walk)) return 0;
    for (uint32_t at = 0; at < n; at++) {
        const segment *z = dt_segment_at(queue[at]);
        if (of[z->id % SEGMENTS] == walk && z->cost > 0 && z->mesh != y->mesh && !dt_mesh_encloses(z->mesh, y->mesh)) mesh_set_add(&way, z->mesh);
    }
    return way.n;
}

/* A backward is no opener, though its gradients may go round over a norm of all stages' and come back to the optimizer. */
bool dt_segment_backward(const segment *s) {
    const segment *first = dt_segment_at(s->run);
    return s->closing || (first && first->closing);
}

/* The youngest opener that y reads from, directly or by way of segments of its own stay, such as activations made again for it: weights, too, go out to
 * other meshes (tied ones) and are read by backwards, but are older. */
static const segment *find_opener(const segment *y, uint32_t *meshes) {
    enum { NEAR = 64 };
    const segment *seen[NEAR], *best = NULL;
    int n = 0;
    seen[n++] = y;
    for (int at = 0; at < n; at++)
        for (uint32_t i = 0; i < seen[at]->n_dep; i++) {
            const segment *x = dt_segment_at(seen[at]->dep[i]);
            if (!x || x->side || x->mesh != y->mesh || x->run == y->run || dt_segment_backward(x) || (best && x->id <= best->id)) continue;
            uint32_t back = comes_back(y, x);
            if (back) {
                best = x;
                *meshes = back;
                continue;
            }
            int k = 0;
            while (k < n && seen[k] != x) k++;
            if (k == n && n < NEAR && x->id > y->run) seen[n++] = x; /* of this stay: not by way of an optimizer's step */
        }
    return best;
}

void dt_openers_find(segment *y) {
    bool away = y->run != y->id; /* does it, or what this stay began with, read from another mesh at all */
    for (uint32_t i = 0; i < y->n_dep; i++) {
        const segment *z = dt_segment_at(y->dep[i]);
        away |= z && !z->side && z->mesh != y->mesh;
    }
    uint32_t meshes = 0;
    const segment *opener = away ? find_opener(y, &meshes) : NULL;
    if (!opener) return;
    y->closing = true;
    if (dt_segment_at(y->run)) dt_segment_at(y->run)->closing = true;
    learn_opener(opener, meshes, y->id);
}
