/* The segments of a stream over several meshes, as order.c and order_openers.c see them. Controller thread only. */
#ifndef DT_CONTROLLER_ORDER_SEGMENTS_H
#define DT_CONTROLLER_ORDER_SEGMENTS_H

#include "controller/engine.h"

enum { SEGMENTS = 1 << 16 };

typedef struct dt_segment {
    uint32_t id; /* 0: unused */
    const dt_mesh *mesh;
    dt_graph *graph; /* NULL once dispatched */
    bool side, closing;
    bool listed;     /* in can_run */
    bool after;      /* side: reads what meshes compute */
    bool arrives;    /* reads what other stages made, itself */
    bool staged;     /* reads what other meshes' segments made, unless these made it of nothing but plain values, as a slice of the data on the whole mesh */
    uint64_t kind;   /* hash of the operators and the mesh */
    uint32_t run;    /* id of the first segment of this stay on the mesh: long ones are cut */
    uint32_t into;   /* absorbed: by that segment */
    uint32_t closer; /* an opener: the segment that reads what it saved, once the stream has shown it */
    uint32_t
        behind; /* waits for nothing, but comes after this segment of its stay: if it is no opener, activations made again for the gradient that has come */
    uint32_t n; /* calls */
    uint32_t n_dep, cap_dep;
    uint32_t *dep; /* ids of the segments it reads from */
    double cost, end;
    double ready;           /* when those it reads from have ended, as far as they are dispatched */
    uint32_t alive;         /* values it made that still exist */
    uint32_t waiting, next; /* the first of the closed segments that wait for this one to be dispatched; the next one in such a list */
} dt_segment;
typedef dt_segment segment;

/* A segment is found by its id as long as no younger one needs its place. */
extern segment dt_the_ring[SEGMENTS]; /* apart from what begins with other values than zero: megabytes that need no place in the file */
extern struct dt_order_window {
    uint32_t next;    /* id of the next one */
    uint32_t settled; /* the first since all was flushed. What is older is known to be done, and nothing else */
} dt_the_window;
static inline segment *dt_segment_at(uint32_t id) {
    segment *s = &dt_the_ring[id % SEGMENTS];
    return id && s->id == id ? s : NULL; /* NULL: so old that it was dispatched long ago */
}
static inline bool dt_segment_pending(const segment *s) { return s && s->graph; }

/* Meshes since the flush. */
typedef struct dt_visit {
    const dt_mesh *mesh;
    uint32_t first; /* its first segment */
    bool openers;   /* some were seen there */
    uint32_t run;   /* of the last dispatched */
} dt_visit;
dt_visit *dt_visit_of(const dt_mesh *m); /* NULL: none, or there were too many */
void dt_visit_note(const segment *s);    /* s is new */
void dt_visits_reset(void);
bool dt_visit_openers(const dt_mesh *m);
bool dt_segment_again(const segment *s); /* was another stay on its mesh before? */

/* order_openers.c */
void dt_openers_find(segment *y);                          /* y is closed: does it close openers? */
uint32_t dt_opener_limit(uint64_t kind);                   /* of segments of that kind; 0: they are no openers, as far as is known */
void dt_opener_seen(const segment *x);                     /* x is one */
bool dt_segment_backward(const segment *s);                /* it, or the stay it belongs to, closes openers */
bool dt_mesh_encloses(const dt_mesh *a, const dt_mesh *b); /* does a hold all devices of b, and more? */

#endif
