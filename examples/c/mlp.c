/* A C program as the client: trains a two-layer network to read handwritten digits, the batch split over two devices.
 *
 *     mlp digits.txt        each line: 64 grey values (0 to 9, a to g for 10 to 16), a space, the digit
 *
 * Prints the share of held-out images read correctly; the exit code is 0 from 95 % on. Build it with
 * cc mlp.c $(pkg-config --cflags --libs dtorch), or as part of DTorch's own build, which also runs it as a test. */
#include <dtorch.h>
#include <dtorch_ops.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIXELS = 64, HIDDEN = 64, CLASSES = 10, BATCH = 100, EPOCHS = 40, MOST = 4000 };

typedef struct {
    int n;
    float pixels[MOST][PIXELS]; /* 0 to 1 */
    int64_t digit[MOST];
} images;

typedef struct {
    dt_tensor *w1, *b1, *w2, *b2; /* (HIDDEN, PIXELS) (HIDDEN) (CLASSES, HIDDEN) (CLASSES) */
} network;

/* Every fifth line goes to `held_out`, the others to `train`. Returns 0, or -1 when the file is not as described. */
static int load(const char *path, images *train, images *held_out) {
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    char line[128];
    for (int k = 0; fgets(line, sizeof line, f); k++) {
        images *to = k % 5 ? train : held_out;
        if (strlen(line) < PIXELS + 2 || to->n == MOST) {
            fclose(f);
            return -1;
        }
        for (int i = 0; i < PIXELS; i++) to->pixels[to->n][i] = (float)(line[i] <= '9' ? line[i] - '0' : line[i] - 'a' + 10) / 16;
        to->digit[to->n++] = line[PIXELS + 1] - '0';
    }
    fclose(f);
    return train->n && held_out->n ? 0 : -1;
}

/* A parameter of normal random numbers times `scale`, on all devices of the mesh. It outlives the scope. */
static dt_tensor *parameter(dt_scope *s, const struct dt_mesh *mesh, dt_dims shape, double scale) {
    dt_tensor *t = dt_mul(s, dt_randn(s, shape, NULL, DT_float32, NULL), scale);
    t = dt_keep(dt_distribute(s, t, mesh, "R"));
    if (t) dt_requires_grad_set(t, true);
    return t;
}

/* x: (n, PIXELS) -> logits (n, CLASSES) */
static dt_tensor *forward(dt_scope *s, const network *net, dt_tensor *x) {
    return dt_linear(s, dt_relu(s, dt_linear(s, x, net->w1, net->b1)), net->w2, net->b2);
}

static void step(dt_scope *s, dt_tensor *w, double rate) {
    if (!w || !dt_grad_of(w)) return;
    dt_sgd_update(s, w, dt_grad_of(w), rate, 0.0, false);
    dt_grad_clear(w);
}

/* One pass over the images in the order given; returns the mean loss, or NaN after an error. No call in it waits but the last. */
static double epoch(const network *net, const struct dt_mesh *mesh, const images *data, double rate) {
    dt_scope *all = dt_scope_new();
    dt_tensor *total = dt_zeros(all, DT_DIMS(1), DT_float32, NULL);
    int batches = 0;
    for (int at = 0; at < data->n; at += BATCH, batches++) {
        int n = data->n - at < BATCH ? data->n - at : BATCH; /* the last batch is smaller and splits unevenly */
        dt_scope *s = dt_scope_new();
        dt_tensor *x = dt_distribute(s, dt_from_host(s, data->pixels[at], DT_float32, DT_DIMS(n, PIXELS)), mesh, "S0");
        dt_tensor *y = dt_distribute(s, dt_from_host(s, &data->digit[at], DT_int64, DT_DIMS(n)), mesh, "S0");
        dt_tensor *loss = dt_cross_entropy(s, forward(s, net, x), y, NULL, DT_NOTHING, -100, DT_NOTHING, "mean", 0.0);
        if (loss && dt_backward(loss, NULL, false, false)) loss = NULL;
        bool grad = dt_grad_mode_set(false);
        for (int i = 0; i < 4; i++) step(s, (dt_tensor *[]){net->w1, net->b1, net->w2, net->b2}[i], rate);
        total = dt_add(all, total, loss);
        dt_grad_mode_set(grad);
        bool failed = dt_scope_status(s) || !loss;
        dt_scope_free(s);
        if (failed) break;
    }
    double sum = NAN;
    if (!total || dt_item_f64(total, &sum)) fprintf(stderr, "mlp: %s\n", dt_error());
    dt_scope_free(all);
    return sum / batches;
}

/* The share of images whose largest logit is the right one; negative after an error. */
static double accuracy(const network *net, const struct dt_mesh *mesh, const images *data) {
    bool grad = dt_grad_mode_set(false);
    dt_scope *s = dt_scope_new();
    dt_tensor *x = dt_distribute(s, dt_from_host(s, data->pixels, DT_float32, DT_DIMS(data->n, PIXELS)), mesh, "S0");
    dt_tensor *y = dt_from_host(s, data->digit, DT_int64, DT_DIMS(data->n));
    dt_tensor *right = dt_eq(s, dt_argmax(s, forward(s, net, x), 1, false), y);
    double sum = 0;
    int bad = dt_item_f64(dt_sum(s, right, DT_NO_DIMS, false, DT_DTYPE_NONE), &sum);
    if (bad) fprintf(stderr, "mlp: %s\n", dt_error());
    dt_scope_free(s);
    dt_grad_mode_set(grad);
    return bad ? -1 : sum / data->n;
}

int main(int argc, char **argv) {
    static images train, held_out;
    if (argc != 2 || load(argv[1], &train, &held_out)) {
        fprintf(stderr, "usage: mlp digits.txt\n");
        return 2;
    }
    dt_manual_seed(1);
    const struct dt_mesh *mesh = dt_mesh_cpu(1, (int64_t[]){2}, (const char *[]){"dp"});
    dt_scope *s = dt_scope_new();
    network net = {parameter(s, mesh, DT_DIMS(HIDDEN, PIXELS), sqrt(2.0 / PIXELS)), parameter(s, mesh, DT_DIMS(HIDDEN), 0),
                   parameter(s, mesh, DT_DIMS(CLASSES, HIDDEN), sqrt(2.0 / HIDDEN)), parameter(s, mesh, DT_DIMS(CLASSES), 0)};
    dt_scope_free(s);
    if (!mesh || !net.w1 || !net.b1 || !net.w2 || !net.b2) {
        fprintf(stderr, "mlp: %s\n", dt_error());
        return 1;
    }
    for (int e = 1; e <= EPOCHS; e++) printf("epoch %2d of %d: loss %.4f\n", e, EPOCHS, epoch(&net, mesh, &train, 0.2));
    double share = accuracy(&net, mesh, &held_out);
    printf("%.2f %% of %d held-out images\n", 100 * share, held_out.n);
    for (int i = 0; i < 4; i++) dt_release((dt_tensor *[]){net.w1, net.b1, net.w2, net.b2}[i]);
    return share >= 0.95 ? 0 : 1;
}
