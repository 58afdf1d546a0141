/* Collectives of ranks that share memory. shared_memory.py maps the segment and calls begin() and resume().
 *
 * A collective of many bytes is a row of operations, each of at most one slot per rank. In an operation every rank
 * copies its part into its slot and arrives; the last to arrive opens it; then everybody copies out. Slots have two
 * sides used in turn: who arrives at operation k + 1 has left k, so whoever writes for k + 2 disturbs nobody.
 *
 * A sum is divided into pieces, which whoever runs at the moment takes until none is left: on crowded cores the last to
 * arrive does it all, and nobody waits for a rank that has no core. Every element is ((r0 + r1) + r2) + ..., so the bits
 * depend neither on who adds nor on who came first.
 *
 * Who waits spins, then yields, then sleeps on a futex. WAITING after nap_ns lets Python look at signals and peers.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SUM, GATHER, BROADCAST, BARRIER };           /* what */
enum { FLOAT32, FLOAT64, INT32, INT64, BYTES };     /* of which type; BYTES cannot be added */
enum { DONE, WAITING, MISMATCH, LOST };             /* what begin and resume return */
enum { LINE = 64, PIECE = 16384 };

#define LINE_OF_ITS_OWN _Alignas(LINE)

struct call { uint64_t operation, num_bytes, what; }; /* what a rank came for, to be the same on all */

struct rank_line { LINE_OF_ITS_OWN struct call call; };

struct segment { /* zero at first */
    LINE_OF_ITS_OWN atomic_uint_fast64_t arrived;    /* ranks, over all operations */
    LINE_OF_ITS_OWN atomic_uint adding;              /* operation + 1 whose pieces may be taken */
    LINE_OF_ITS_OWN atomic_uint taken;               /* pieces */
    LINE_OF_ITS_OWN atomic_uint added;               /* pieces */
    LINE_OF_ITS_OWN atomic_uint open;                /* operation + 1 that may be left; sleepers' futex */
    atomic_uint asleep;
    atomic_uint fault;                               /* MISMATCH, or LOST: a rank has given up */
    LINE_OF_ITS_OWN struct rank_line ranks[];
};

struct context { /* of one rank; shared_memory.py has the same fields */
    struct segment *segment;
    uint64_t rank, world_size, slot_bytes, spin_ns, num_yields, nap_ns;
    /* the collective under way */
    const char *in;
    char *out;
    uint64_t what, type, num_bytes, offset, has_arrived;
    uint64_t operation; /* how many were completed */
};

uint64_t segment_bytes(uint64_t world_size, uint64_t slot_bytes) {
    return sizeof(struct segment) + world_size * sizeof(struct rank_line) + 2 * (world_size + 1) * slot_bytes;
}

static char *slot(const struct context *c, uint64_t rank) { /* slot W holds the sum */
    char *slots = (char *)&c->segment->ranks[c->world_size];
    uint64_t side = c->operation % 2;
    return slots + (side * (c->world_size + 1) + rank) * c->slot_bytes;
}

static uint64_t operation_bytes(const struct context *c) {
    uint64_t left = c->num_bytes - c->offset;
    return left < c->slot_bytes ? left : c->slot_bytes;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void pause_a_little(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#define ADD(TYPE)                                                                                   \
    static void add_##TYPE(TYPE *restrict sum, const TYPE *restrict part, uint64_t num_bytes) {     \
        for (uint64_t i = 0; i < num_bytes / sizeof(TYPE); i++) sum[i] += part[i];                  \
    }
ADD(float)
ADD(double)
ADD(uint32_t) /* unsigned, so that overflow wraps as in numpy and torch */
ADD(uint64_t)

static void add(uint64_t type, char *sum, const char *part, uint64_t num_bytes) {
    switch (type) {
    case FLOAT32: add_float((float *)sum, (const float *)part, num_bytes); break;
    case FLOAT64: add_double((double *)sum, (const double *)part, num_bytes); break;
    case INT32: add_uint32_t((uint32_t *)sum, (const uint32_t *)part, num_bytes); break;
    case INT64: add_uint64_t((uint64_t *)sum, (const uint64_t *)part, num_bytes); break;
    }
}

static void wake_all(struct segment *s) { syscall(SYS_futex, &s->open, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

static void open_(struct segment *s, uint64_t operation) {
    atomic_store(&s->open, (unsigned)(operation + 1));
    if (atomic_load(&s->asleep)) wake_all(s);
}

static int is_open(const struct context *c) { /* also when the count of operations has wrapped */
    return (int32_t)(atomic_load(&c->segment->open) - (unsigned)(c->operation + 1)) >= 0;
}

static void take_pieces(const struct context *c) {
    struct segment *s = c->segment;
    uint64_t num_bytes = operation_bytes(c), num_pieces = (num_bytes + PIECE - 1) / PIECE;
    for (uint64_t piece; (piece = atomic_fetch_add(&s->taken, 1)) < num_pieces;) {
        uint64_t first = piece * PIECE, size = num_bytes - first < PIECE ? num_bytes - first : PIECE;
        char *sum = slot(c, c->world_size) + first;
        memcpy(sum, slot(c, 0) + first, size);
        for (uint64_t rank = 1; rank < c->world_size; rank++) add(c->type, sum, slot(c, rank) + first, size);
        if (atomic_fetch_add(&s->added, 1) + 1 == num_pieces) open_(s, c->operation);
    }
}

static void arrive(struct context *c) {
    struct segment *s = c->segment;
    uint64_t num_bytes = operation_bytes(c);
    struct call call = {c->operation, c->num_bytes, c->what << 8 | c->type};
    if (c->what != BROADCAST || c->rank == 0) memcpy(slot(c, c->rank), c->in + c->offset, num_bytes);
    s->ranks[c->rank].call = call;
    c->has_arrived = 1;
    if (atomic_fetch_add(&s->arrived, 1) + 1 < c->world_size * (c->operation + 1)) return;
    for (uint64_t rank = 0; rank < c->world_size; rank++)
        if (memcmp(&s->ranks[rank].call, &call, sizeof call)) atomic_store(&s->fault, MISMATCH);
    if (c->what == SUM && num_bytes && atomic_load(&s->fault) != MISMATCH) {
        atomic_store(&s->taken, 0);
        atomic_store(&s->added, 0);
        atomic_store(&s->adding, (unsigned)(c->operation + 1));
        take_pieces(c);
    } else {
        open_(s, c->operation);
    }
}

static int has_opened(const struct context *c) {
    if (is_open(c)) return 1;
    if (c->what != SUM || atomic_load(&c->segment->adding) != (unsigned)(c->operation + 1)) return 0;
    take_pieces(c);
    return is_open(c);
}

static int wait_for_all(const struct context *c) {
    struct segment *s = c->segment;
    if (has_opened(c)) return DONE;
    for (uint64_t end = c->spin_ns ? now_ns() + c->spin_ns : 0; end && now_ns() < end;)
        for (int i = 0; i < 16; i++) {
            if (has_opened(c)) return DONE;
            pause_a_little();
        }
    for (uint64_t i = 0; i < c->num_yields; i++) {
        sched_yield();
        if (has_opened(c)) return DONE;
    }
    struct timespec nap = {0, (long)c->nap_ns};
    unsigned seen = atomic_load(&s->open);
    atomic_fetch_add(&s->asleep, 1);
    if (!is_open(c)) syscall(SYS_futex, &s->open, FUTEX_WAIT, seen, &nap, NULL, 0);
    atomic_fetch_sub(&s->asleep, 1);
    if (has_opened(c)) return DONE;
    return atomic_load(&s->fault) == LOST ? LOST : WAITING;
}

static void copy_out(const struct context *c) {
    uint64_t num_bytes = operation_bytes(c);
    if (c->what == GATHER && c->out) /* else for others to receive */
        for (uint64_t rank = 0; rank < c->world_size; rank++)
            memcpy(c->out + rank * c->num_bytes + c->offset, slot(c, rank), num_bytes);
    else if (c->what == SUM)
        memcpy(c->out + c->offset, slot(c, c->world_size), num_bytes);
    else if (c->what == BROADCAST && c->rank != 0)
        memcpy(c->out + c->offset, slot(c, 0), num_bytes);
}

int resume(struct context *c) { /* goes on with a collective that returned WAITING */
    for (;;) {
        if (!c->has_arrived) arrive(c);
        int status = wait_for_all(c);
        if (status != DONE) return status;
        if (atomic_load(&c->segment->fault) == MISMATCH) return MISMATCH;
        copy_out(c);
        c->offset += operation_bytes(c);
        c->operation++;
        c->has_arrived = 0;
        if (c->offset == c->num_bytes) return DONE;
    }
}

void give_up(struct context *c) { /* whoever waits for this rank need wait no longer */
    atomic_store(&c->segment->fault, LOST);
    wake_all(c->segment);
}

int begin(struct context *c, uint64_t what, uint64_t type, const void *in, void *out, uint64_t num_bytes) {
    c->what = what;
    c->type = type;
    c->in = in;
    c->out = out;
    c->num_bytes = num_bytes;
    c->offset = 0;
    return resume(c);
}
