/* Values that lie in files: which bytes of which file are which part of a tensor, and reading a device's part of them.
 *
 *   dt_file     an open file, as it was when it was opened: size and time of the last change
 *   dt_source   a tensor as boxes of files: the client makes it (from a safetensors header, from a checkpoint's index), and views of it
 *   dt_load     what one device reads: the intersections of its box with the source's, as offsets and strides. Made by the controller, on the layout
 *               (tensor/layout.h) alone; carried out by the device's worker, also on another node, into the device's own memory
 *
 * Files are read with pread, never mapped: a file that was cut off meanwhile is an error and no signal. A file that has changed since it was opened
 * (by size or time) gives an error, too. What goes beyond a part is a block of at most DT_READ_CHUNK bytes, for parts that lie in short runs.
 *
 * Threads: all immutable but for reference counts and, in a dt_file, what is under its lock. */
#ifndef DT_PLAN_SOURCE_H
#define DT_PLAN_SOURCE_H

#include <pthread.h>

#include "plan/program.h"

enum { DT_READ_CHUNK = 1 << 20, DT_FILES_MAX = 512 /* open at a time before sources are read at once */ };

typedef struct dt_file {
    _Atomic uint32_t refs;
    int fd;
    uint64_t size, head; /* bytes; of them, those that identify the file, */
    uint32_t head_crc;   /* and their checksum */
    int64_t changed_ns;
    uint64_t id;           /* what other nodes call it; 0: nothing */
    _Atomic uint8_t *here; /* (dt_nodes,) which nodes can read it; NULL: this one only */
    pthread_mutex_t lock;
    uint64_t *verified; /* offsets of what had the right checksum */
    int n_verified, cap_verified;
    char path[];
} dt_file;
/* Takes fd in any case. A regular file whose first `head` bytes identify it. */
dt_status dt_file_new(int fd, const char *path, uint64_t head, dt_file **out) DT_WUR;
/* Opens path and compares it with what it is said to be. */
dt_status dt_file_open(const char *path, uint64_t size, uint64_t head, uint32_t head_crc, dt_file **out) DT_WUR;
dt_file *dt_file_ref(dt_file *f);
void dt_file_unref(dt_file *f);                     /* any thread; NULL passes */
extern void (*dt_file_drop_elsewhere)(uint64_t id); /* the last reference on a file that other nodes know is gone */
int dt_files_open(void);

typedef struct dt_check { /* bytes of a file and their checksum; bytes 0: none */
    uint64_t at, bytes;
    uint32_t crc;
} dt_check;
typedef struct dt_file_box { /* a box of the tensor */
    dt_file *file;
    int64_t at;                                                  /* the byte of its first element */
    int64_t lo[DT_MAX_DIM], len[DT_MAX_DIM], stride[DT_MAX_DIM]; /* stride: elements in the file, not negative */
    dt_check check;
} dt_file_box;
typedef struct dt_source {
    _Atomic uint32_t refs;
    uint32_t site; /* of the call that made it */
    dt_type type;
    int n;
    dt_file_box piece[];
} dt_source;
/* Pieces are copied, their files referenced. E_VALUE if one of them lies outside of its file or of the tensor. */
dt_status dt_source_new(const dt_type *type, uint32_t site, int n, const dt_file_box *piece, dt_source **out) DT_WUR;
dt_source *dt_source_ref(dt_source *s);
void dt_source_unref(dt_source *s);
/* The whole tensor into contiguous memory, now. */
dt_status dt_source_read(const dt_source *s, void *to) DT_WUR;

typedef struct dt_load_op { /* a block of a file to a block of the part */
    dt_file *file;
    int64_t at, to; /* bytes in the file, elements in the part */
    int32_t ndim;
    int64_t shape[DT_MAX_DIM], from[DT_MAX_DIM], into[DT_MAX_DIM]; /* strides in elements */
    dt_check check;
} dt_load_op;
typedef struct dt_load {
    dt_buf *buf;     /* referenced; what it is read into */
    dt_future *done; /* referenced; NULL: nobody asks */
    uint32_t site;
    dt_dtype dtype;
    int64_t numel; /* of the part */
    int n;
    dt_load_op *op;
} dt_load;
/* What the mesh's pos-th device reads of s as a value of m (m's shape and dtype are s's). buf and done are left unset. E_VALUE: the pieces do not cover it. */
dt_status dt_load_new(const dt_source *s, const dt_meta *m, int pos, dt_load **out) DT_WUR;
dt_load *dt_load_alloc(int n);                    /* NULL: out of host memory */
dt_status dt_load_check(const dt_load *r) DT_WUR; /* is all within the files, and the part? */
dt_status dt_load_run(const dt_load *r, void *to) DT_WUR;
void dt_load_free(dt_load *r);

#endif
