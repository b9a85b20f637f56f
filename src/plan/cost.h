/* The cost model: a description of hardware to seconds of an operator and of a collective. The one source of such numbers: the simulated devices' clocks
 * (backend/sim), the order of work on several meshes (controller/order.c) and `dtorch.simulate`'s figures all come from here.
 *
 * An operator takes   overhead + max(matrix work / reached FLOP/s, vector work / reached FLOP/s, bytes / bandwidth)   (a roofline: Williams, Waterman and
 * Patterson 2009, doi 10.1145/1498765.1498785), where the reached share of the peak grows with the operator's size: share * w / (w + half).
 * A collective takes   steps * latency + bytes / bandwidth   (Hockney's alpha-beta model; rings and trees as in Thakur, Rabenseifner and Gropp 2005, doi
 * 10.1177/1094342005051521), by the slowest level of links that it crosses.
 *
 * Threads: dt_hardware_set is called while nobody computes costs (before the first, or when the engine is idle). Everything else is pure. */
#ifndef DT_PLAN_COST_H
#define DT_PLAN_COST_H

#include "plan/program.h"

/* What kinds of work a device does at different shares of its peak. */
typedef enum dt_work {
    DT_WORK_MATMUL,
    DT_WORK_CONV,
    DT_WORK_WINOGRAD,  /* convolutions of the form that the cpu does with fewer multiplications than are counted (ops/conv.h) */
    DT_WORK_RECURRENT, /* a recurrent layer: many products of a few rows, one after the other */
    DT_WORK_ATTENTION,
    DT_WORK_VECTOR,
    DT_WORK_KINDS
} dt_work;
enum { DT_LINK_LEVELS = 4 };

typedef struct dt_link_level {
    int64_t devices;  /* that one unit of this level joins: 8 in a machine, then all of the cluster */
    double bandwidth; /* bytes a second that one device sends, while it receives as many */
    double latency;   /* seconds of one hop */
} dt_link_level;

typedef struct dt_hardware {
    char name[48];
    double flops[DT_DTYPE_COUNT];        /* peak of matrix work in that dtype, FLOP/s */
    double vector;                       /* peak of elementwise work, FLOP/s */
    double share[DT_WORK_KINDS];         /* of the peak that a large operator reaches */
    double half[DT_WORK_KINDS];          /* FLOP of an operator that reaches half of that */
    double bandwidth;                    /* of memory, bytes/s, as reached */
    double cache_bytes, cache_bandwidth; /* operators whose operands fit are served at this; 0: no such thing */
    double overhead;                     /* seconds an operator takes however small */
    int64_t memory;                      /* bytes of a device; 0: no limit */
    double overlap;                      /* of the time of communication beside computation, how much the latter goes on: 1: all, 0: it waits */
    int n_levels;
    dt_link_level level[DT_LINK_LEVELS]; /* from the inside out */
} dt_hardware;

extern const dt_hardware dt_hardware_plain; /* a processor core or two: what order.c reckons with until told otherwise */
extern uint32_t dt_hardware_generation;     /* counts dt_hardware_set: who keeps costs remembers whose they are */
const dt_hardware *dt_hardware_get(void);
void dt_hardware_set(const dt_hardware *h); /* copies; NULL: dt_hardware_plain */

typedef struct dt_op_cost {
    double seconds;
    double flops; /* of matrix work */
    double ideal; /* seconds of the matrix work at peak */
    double bytes; /* read and written */
} dt_op_cost;
/* A kernel instruction on local shapes, or a fused group. */
void dt_cost_instr(const dt_hardware *h, const dt_instr *s, dt_op_cost *out);
/* A call on global tensors, as one device of its mesh sees it. */
double dt_cost_call(const dt_hardware *h, const dt_call *c);

/* What one party of a transfer receives and sends. Fill in with dt_cost_traffic_add, then ask for the time. */
typedef struct dt_traffic {
    double in[DT_LINK_LEVELS], out[DT_LINK_LEVELS]; /* bytes by level */
    int peers[DT_LINK_LEVELS];                      /* whom it reads from, by level */
} dt_traffic;
int dt_cost_level(const dt_hardware *h, dt_device a, dt_device b); /* of the link between two devices */
/* All parties of a collective (not pulled): (c->n,) zeroed. peers_seen: (c->n,) scratch. */
void dt_cost_traffic(const dt_hardware *h, const dt_coll *c, dt_traffic *t, int *peers_seen);
/* What a mesh's devices meet over along dimension d: bytes a second that each sends in a ring, and seconds that a small collective takes. */
dt_link dt_cost_along(const dt_hardware *h, const dt_mesh *m, int d);
/* Seconds of a redistribution, by formulas: of nothing but the two placements (and meshes). For choices between many; a simulation prices the real transfers. */
double dt_cost_redistribution(const dt_hardware *h, const dt_meta *from, const dt_meta *to);
/* Seconds by kind ("all_reduce", "all_gather", …): the latency part and the rest. */
void dt_cost_transfer(const dt_hardware *h, const char *kind, const dt_traffic *t, double *latency, double *moving);

#endif
