/* sampler.c - one row of logits to one token, a pure function of row, parameters, seed, choice and position.
 *
 * Candidates come off a heap by falling logit (ties: rising id), so that a 150,000-token vocabulary is not sorted for the few
 * that matter. A popped candidate is kept in the heap array's freed tail: the first `kept` of them stand there in order.
 * Weights are e = exp((logit - max) / temperature), so the best has exactly 1 and min-p compares with e itself.
 *   Z      softmax denominator: over the vocabulary by id in 16 lanes, or with top-k over its candidates in order
 *   min-p  ends the list at the first e < min_p;  top-p  ends it once the running sum reaches top_p * Z
 *   draw   the first candidate at which the running sum exceeds u * total; total is the sum of the list, or Z when nothing cut it
 * Greedy looks at no random number.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/sampler.h"
#include "base/rng.h"
#include "engine/ops/ops.h"
#include "engine/ops/scalar.h"
#include "engine/rope.h"

struct candidate {
    float key; /* logit in the heap, e once popped */
    int32_t id;
};
_Static_assert(sizeof(struct candidate) == 8, "scratch is 8 bytes a token");

struct scan {
    float best, second;
    int32_t id;
    bool bad; /* NaN or +infinity; -infinity is a token that is ruled out */
};

static struct scan scan_row(const float *logits, uint32_t vocab)
{
    struct scan s = {.best = -INFINITY, .second = -INFINITY, .id = -1};
    for (uint32_t i = 0; i < vocab; i++) {
        float v = logits[i];
        s.bad = s.bad || !(v < INFINITY);
        if (v > s.best) {
            s.second = s.best;
            s.best = v;
            s.id = (int32_t)i;
        } else if (v > s.second) {
            s.second = v;
        }
    }
    return s;
}

static bool before(const struct candidate *a, const struct candidate *b)
{
    return a->key > b->key || (a->key == b->key && a->id < b->id);
}

static void sift_down(struct candidate *heap, uint32_t n, uint32_t i)
{
    struct candidate moved = heap[i];
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= n) {
            break;
        }
        if (child + 1 < n && before(&heap[child + 1], &heap[child])) {
            child++;
        }
        if (!before(&heap[child], &moved)) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moved;
}

/* The list under way: a heap of n in front, `kept` popped ones from the end backwards. */
struct list {
    struct candidate *c;
    uint32_t n, size, kept;
    float max, temperature, sum;
};

static void list_build(struct list *l, const float *logits, uint32_t vocab)
{
    l->n = l->size = vocab;
    for (uint32_t i = 0; i < vocab; i++) {
        l->c[i] = (struct candidate){.key = logits[i], .id = (int32_t)i};
    }
    for (uint32_t i = vocab / 2; i > 0; i--) {
        sift_down(l->c, vocab, i - 1);
    }
}

static struct candidate *list_at(const struct list *l, uint32_t rank)
{
    return &l->c[l->size - 1 - rank];
}

/* Weight of the best candidate still in the heap. */
static float list_peek(const struct list *l)
{
    return eng_exp((l->c[0].key - l->max) / l->temperature);
}

/* Takes the best one off; false when none is left. */
static bool list_pop(struct list *l)
{
    if (l->n == 0) {
        return false;
    }
    struct candidate top = {.key = list_peek(l), .id = l->c[0].id};
    l->c[0] = l->c[--l->n];
    if (l->n > 1) {
        sift_down(l->c, l->n, 0);
    }
    *list_at(l, l->kept++) = top;
    l->sum = l->sum + top.key;
    return true;
}

/* Applies min-p and top-p to a list that top-k already popped. */
static void list_cut(struct list *l, const struct eng_sampling *p)
{
    float z = l->sum, sum = 0.0f;
    uint32_t n = 0;
    while (n < l->kept && (n == 0 || (list_at(l, n)->key >= p->min_p && sum < p->top_p * z))) {
        sum = sum + list_at(l, n++)->key;
    }
    if (p->top_p < 1.0f || p->min_p > 0.0f) {
        l->kept = n;
        l->sum = sum;
    }
}

/* The first kept candidate at which the running sum exceeds the target; the last with a weight when rounding hides it. */
static int32_t list_draw(const struct list *l, float target)
{
    float sum = 0.0f;
    int32_t id = list_at(l, 0)->id;
    for (uint32_t i = 0; i < l->kept; i++) {
        const struct candidate *c = list_at(l, i);
        sum = sum + c->key;
        id = c->key > 0.0f ? c->id : id;
        if (sum > target) {
            return c->id;
        }
    }
    return id;
}

static const struct eng_ops *ops(void)
{
    const struct eng_ops *best = eng_ops_best();
    return best != NULL ? best : &eng_ops_ref;
}

static int32_t draw(const float *logits, uint32_t vocab, const struct eng_sampling *p, float max, float u,
                    void *scratch)
{
    struct list l = {.c = scratch, .max = max, .temperature = p->temperature};
    list_build(&l, logits, vocab);
    if (p->top_k > 0 && p->top_k < vocab) {
        while (l.kept < p->top_k && list_pop(&l)) {}
        list_cut(&l, p);
        return list_draw(&l, u * l.sum);
    }
    float z = ops()->sum_exp(logits, vocab, max, p->temperature);
    if (!(p->top_p < 1.0f) && !(p->min_p > 0.0f)) {
        float target = u * z;
        while (!(l.sum > target) && list_pop(&l)) {}
        return list_draw(&l, target);
    }
    while (l.n > 0 && (l.kept == 0 || (list_peek(&l) >= p->min_p && l.sum < p->top_p * z))) {
        (void)list_pop(&l);
    }
    return list_draw(&l, u * l.sum);
}

kvs_status eng_sample_row(const float *logits, uint32_t vocab, const struct eng_sampling *p, uint32_t choice,
                          uint32_t position, void *scratch, struct eng_sample *out)
{
    if (vocab == 0 || !(p->temperature >= 0.0f) || !(p->temperature < INFINITY) || !(p->top_p >= 0.0f) ||
        !(p->min_p >= 0.0f)) {
        return KVS_REQ_INVALID;
    }
    struct scan s = scan_row(logits, vocab);
    if (s.bad || s.id < 0) {
        return KVS_SELF_NUMERIC;
    }
    int32_t id = s.id;
    if (p->temperature > 0.0f) {
        id = draw(logits, vocab, p, s.best, kvs_rng_unit(p->seed, choice, position, 0), scratch);
    }
    float sum = ops()->sum_exp(logits, vocab, s.best, 1.0f);
    double logprob = ((double)logits[id] - (double)s.best) - eng_log64((double)sum);
    *out = (struct eng_sample){.id = id, .logit = logits[id], .margin = s.best - s.second, .logprob = (float)logprob};
    return KVS_OK;
}
