/* Collectives of ranks that share memory. shared_memory.py maps the segment and calls begin() and resume().
 *
 * A collective is a sequence of operations, each of at most one slot (256 kB) per rank. In an operation every rank
 * copies its part into its slot and arrives (`arrive`); the last rank to arrive opens the operation (`open_`); then
 * every rank copies the result out (`copy_out`). Slots have two sides, used in turn. A rank that arrives at operation
 * k + 1 has left operation k, so a rank that already writes for k + 2 overwrites nothing that is still read.
 *
 * A sum is divided into pieces, and any running rank takes the next piece until none is left (`take_pieces`). If ranks
 * share cores, the last rank to arrive may add all of them, and no rank waits for one that has no core. Ranks are
 * added in pairs, r0 + r1, r2 + r3, ..., then these sums in pairs, and so on, so the bits depend neither on the rank
 * that adds nor on the order of arrival. dist.reduction=ordered needs this very tree (group.py:sum_in_pairs).
 *
 * A waiting rank spins for a moment if it has a core to itself, then sleeps on a futex (`wait_for_all`). After nap_ns it
 * returns WAITING to Python, which handles signals, looks for ended processes, and calls resume() again.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SUM, GATHER, BROADCAST, BARRIER };           /* values of `what` */
enum { FLOAT32, FLOAT64, INT32, INT64, BYTES };     /* values of `type`; BYTES cannot be added */
enum { DONE, WAITING, MISMATCH, LOST };             /* results of begin and resume */
enum { LINE = 64, PIECE = 16384 };

#define LINE_OF_ITS_OWN _Alignas(LINE)

struct call { uint64_t operation, num_bytes, what; }; /* must be equal on all ranks, else MISMATCH */

struct rank_line { LINE_OF_ITS_OWN struct call call; };

struct segment { /* the shared memory, zero at first; the slots follow `ranks` */
    LINE_OF_ITS_OWN atomic_uint_fast64_t arrived;    /* arrivals of all ranks in all operations */
    LINE_OF_ITS_OWN atomic_uint adding;              /* operation + 1 that has pieces to add */
    LINE_OF_ITS_OWN atomic_uint taken;               /* pieces that a rank adds or has added */
    LINE_OF_ITS_OWN atomic_uint added;               /* pieces that are added */
    LINE_OF_ITS_OWN atomic_uint open;                /* operation + 1 that is complete; also the futex */
    atomic_uint asleep;                              /* ranks that sleep on `open` */
    atomic_uint fault;                               /* MISMATCH, or LOST: a rank has given up */
    LINE_OF_ITS_OWN struct rank_line ranks[];
};

struct context { /* of one rank; _Context of shared_memory.py has the same fields */
    struct segment *segment;
    uint64_t rank, world_size, slot_bytes, most_spin_ns, nap_ns;
    uint64_t spin_ns; /* how long the next wait spins, at most most_spin_ns */
    /* the collective under way */
    const char *in;
    char *out;
    uint64_t what, type, num_bytes, offset, has_arrived;
    uint64_t operation; /* number of completed operations */
};

uint64_t segment_bytes(uint64_t world_size, uint64_t slot_bytes) {
    return sizeof(struct segment) + world_size * sizeof(struct rank_line) + 2 * world_size * slot_bytes;
}

static char *slot(const struct context *c, uint64_t rank) { /* slot 0 becomes the sum */
    char *slots = (char *)&c->segment->ranks[c->world_size];
    uint64_t side = c->operation % 2;
    return slots + (side * c->world_size + rank) * c->slot_bytes;
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

/* Complete an operation: ranks that wait for it go on. */
static void open_(struct segment *s, uint64_t operation) {
    atomic_store(&s->open, (unsigned)(operation + 1));
    if (atomic_load(&s->asleep)) wake_all(s);
}

static int is_open(const struct context *c) { /* the signed difference is right also after the counters wrap */
    return (int32_t)(atomic_load(&c->segment->open) - (unsigned)(c->operation + 1)) >= 0;
}

/* Add pieces of the current sum until none is left; the rank that finishes the last piece opens the operation. */
static void take_pieces(const struct context *c) {
    struct segment *s = c->segment;
    uint64_t num_bytes = operation_bytes(c), num_pieces = (num_bytes + PIECE - 1) / PIECE;
    for (uint64_t piece; (piece = atomic_fetch_add(&s->taken, 1)) < num_pieces;) {
        uint64_t first = piece * PIECE, size = num_bytes - first < PIECE ? num_bytes - first : PIECE;
        for (uint64_t step = 1; step < c->world_size; step *= 2)
            for (uint64_t rank = 0; rank + step < c->world_size; rank += 2 * step)
                add(c->type, slot(c, rank) + first, slot(c, rank + step) + first, size);
        if (atomic_fetch_add(&s->added, 1) + 1 == num_pieces) open_(s, c->operation);
    }
}

/* Copy this rank's part into its slot. The last rank to arrive checks that all came for the same, and continues. */
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

/* Return whether the operation is complete; help with the sum if it is not. */
static int has_opened(const struct context *c) {
    if (is_open(c)) return 1;
    if (c->what != SUM || atomic_load(&c->segment->adding) != (unsigned)(c->operation + 1)) return 0;
    take_pieces(c);
    return is_open(c);
}

static void spin_longer(struct context *c) {
    uint64_t longer = 2 * c->spin_ns + 1000;
    c->spin_ns = longer < c->most_spin_ns ? longer : c->most_spin_ns;
}

/* Wait until the operation is complete. Spinning is faster than a sleep if the others come before a sleeping rank would
 * have woken up, and else keeps a core from a program that could use it: so the next wait spins twice as long after a
 * wait that was shorter than most_spin_ns, and half as long after a longer one. No sched_yield: since Linux 6.18 it gives
 * up the whole time slice, and if another program wants the core each yield lasts milliseconds. */
static int wait_for_all(struct context *c) {
    struct segment *s = c->segment;
    if (has_opened(c)) return DONE;
    uint64_t start = c->most_spin_ns ? now_ns() : 0;
    for (uint64_t end = start + c->spin_ns; c->spin_ns && now_ns() < end;)
        for (int i = 0; i < 16; i++) {
            if (has_opened(c)) {
                spin_longer(c);
                return DONE;
            }
            pause_a_little();
        }
    /* Sleep until `open` changes. A rank that opens in between sees `asleep` or changes `seen`: no wake-up is lost. */
    struct timespec nap = {0, (long)c->nap_ns};
    unsigned seen = atomic_load(&s->open);
    atomic_fetch_add(&s->asleep, 1);
    if (!is_open(c)) syscall(SYS_futex, &s->open, FUTEX_WAIT, seen, &nap, NULL, 0);
    atomic_fetch_sub(&s->asleep, 1);
    if (c->most_spin_ns && now_ns() - start < c->most_spin_ns) spin_longer(c);
    else c->spin_ns /= 2;
    if (has_opened(c)) return DONE;
    return atomic_load(&s->fault) == LOST ? LOST : WAITING;
}

static void copy_out(const struct context *c) {
    uint64_t num_bytes = operation_bytes(c);
    if (c->what == GATHER && c->out) /* a rank without `out` only sends */
        for (uint64_t rank = 0; rank < c->world_size; rank++)
            memcpy(c->out + rank * c->num_bytes + c->offset, slot(c, rank), num_bytes);
    else if (c->what == SUM)
        memcpy(c->out + c->offset, slot(c, 0), num_bytes);
    else if (c->what == BROADCAST && c->rank != 0)
        memcpy(c->out + c->offset, slot(c, 0), num_bytes);
}

/* Continue a collective that returned WAITING. */
int resume(struct context *c) {
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

/* Make the waits of all ranks end with LOST: this rank takes part in no further collective. */
void give_up(struct context *c) {
    atomic_store(&c->segment->fault, LOST);
    wake_all(c->segment);
}

/* Begin a collective; in and out may be equal. Returns DONE, or WAITING, MISMATCH or LOST. */
int begin(struct context *c, uint64_t what, uint64_t type, const void *in, void *out, uint64_t num_bytes) {
    c->what = what;
    c->type = type;
    c->in = in;
    c->out = out;
    c->num_bytes = num_bytes;
    c->offset = 0;
    return resume(c);
}
