// A device that is slow: each workgroup of a kernel that can be divided takes so long, and those of
// others, which have little to do, a 64th. Timestamps tell of a clock of its own, and fences are
// signalled as late if that is asked for. slow.go has the layout of the struct. Included by
// interposer.c.

#include <pthread.h>
#include <time.h>

enum { SLOTS = 1 << 14, QUEUED = 4096, HEAVY = 64, PIPELINES = 1024, DISPATCH_BASE = 0x10 };

struct slow {
	_Atomic uint32_t group;   // ns that a workgroup with much to do takes; 0: the device is as fast as it is
	_Atomic uint32_t held;    // fences are signalled when the work would have ended
	_Atomic uint32_t count;   // submissions that dispatched something
	_Atomic uint32_t pieces;  // dispatches recorded that do not begin with workgroup 0
	_Atomic uint64_t longest; // ns of one submission
};

static struct slow *slowness(void);

// A command buffer: what it dispatches, and before which timestamps, in workgroups of kernels with
// little to do.
struct recorded {
	uint64_t buffer, groups;
	struct stamp { uint64_t pool, groups; uint32_t query; } *stamps;
	uint32_t n, room, each;
};

static pthread_mutex_t recording = PTHREAD_MUTEX_INITIALIZER;
static struct recorded buffers[SLOTS];
static struct { uint64_t pool, ticks; uint32_t query; } times[SLOTS];
static uint64_t heavy[PIPELINES]; // pipelines that can be divided
static struct { uint64_t fence, ready; } late[QUEUED];
static uint64_t device_clock = 1000000000, idle_from;

static uint64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static uint32_t slot(uint64_t key) { return key * 0x9e3779b97f4a7c15 >> 50; } // of SLOTS

static struct recorded *recorded(uint64_t buffer) {
	for (uint32_t i = slot(buffer), n = 0; n < SLOTS; i = (i + 1) % SLOTS, n++) {
		if (!buffers[i].buffer) buffers[i].buffer = buffer;
		if (buffers[i].buffer == buffer) return &buffers[i];
	}
	abort(); // too many command buffers for this table
}

// place_of finds where the ticks of a query are, or are to be.
static int place_of(uint64_t pool, uint32_t query) {
	for (uint32_t i = slot(pool * 4099 + query), n = 0; n < SLOTS; i = (i + 1) % SLOTS, n++)
		if (!times[i].pool || (times[i].pool == pool && times[i].query == query)) return i;
	abort();
}

// What is recorded while the device is as fast as it is, is not counted.
static void begins(uint64_t buffer) {
	if (!slowness()->group) return;
	pthread_mutex_lock(&recording);
	struct recorded *r = recorded(buffer);
	r->groups = r->n = 0;
	r->each = 1;
	pthread_mutex_unlock(&recording);
}

static void dispatches(uint64_t buffer, uint64_t groups) {
	if (!slowness()->group) return;
	pthread_mutex_lock(&recording);
	struct recorded *r = recorded(buffer);
	r->groups += groups * r->each;
	pthread_mutex_unlock(&recording);
}

// made_pipeline notes whether a pipeline can be divided; ended_pipeline, that it is no more.
static void made_pipeline(uint64_t pipeline, uint32_t flags) {
	pthread_mutex_lock(&recording);
	for (int i = 0; i < PIPELINES && flags & DISPATCH_BASE; i++)
		if (!heavy[i]) {
			heavy[i] = pipeline;
			break;
		}
	pthread_mutex_unlock(&recording);
}

static void ended_pipeline(uint64_t pipeline) {
	pthread_mutex_lock(&recording);
	for (int i = 0; pipeline && i < PIPELINES; i++)
		if (heavy[i] == pipeline) heavy[i] = 0;
	pthread_mutex_unlock(&recording);
}

REAL(vkCmdBindPipeline);
REAL(vkCmdDispatch);
REAL(vkCmdDispatchBase);
static int turns_pipeline(W a, W pipeline);
static int turns_dispatch(W a, W i, W j, W k, W x, W y, W z);
static void our_vkCmdBindPipeline(W a, W point, W pipeline) {
	pthread_mutex_lock(&recording);
	struct recorded *r = slowness()->group ? recorded(a) : NULL;
	if (r) r->each = 1;
	for (int i = 0; r && i < PIPELINES; i++)
		if (heavy[i] == pipeline) r->each = HEAVY;
	pthread_mutex_unlock(&recording);
	if (!turns_pipeline(a, pipeline)) ((Void)real_vkCmdBindPipeline)(a, point, pipeline);
}

static void our_vkCmdDispatch(W a, uint32_t x, uint32_t y, uint32_t z) {
	dispatches(a, (uint64_t)x * y * z);
	if (!turns_dispatch(a, 0, 0, 0, x, y, z)) ((void (*)(W, uint32_t, uint32_t, uint32_t))real_vkCmdDispatch)(a, x, y, z);
}

static void our_vkCmdDispatchBase(W a, uint32_t i, uint32_t j, uint32_t k, uint32_t x, uint32_t y, uint32_t z) {
	dispatches(a, (uint64_t)x * y * z);
	if (i || j || k) slowness()->pieces++;
	if (!turns_dispatch(a, i, j, k, x, y, z))
		((void (*)(W, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t))real_vkCmdDispatchBase)(a, i, j, k, x, y, z);
}

REAL(vkCmdWriteTimestamp);
static void our_vkCmdWriteTimestamp(W a, W stage, W pool, W query) {
	pthread_mutex_lock(&recording);
	struct recorded *r = slowness()->group ? recorded(a) : NULL;
	if (r && r->n == r->room && !(r->stamps = realloc(r->stamps, (r->room += 64) * sizeof *r->stamps))) abort();
	if (r) r->stamps[r->n++] = (struct stamp){pool, r->groups, (uint32_t)query};
	pthread_mutex_unlock(&recording);
	((void (*)(W, W, W, W))real_vkCmdWriteTimestamp)(a, stage, pool, query);
}

// takes lets the clock run for command buffers, and notes when their fence is to be signalled.
static void takes(const uint64_t *list, uint32_t n, uint64_t fence) {
	struct slow *s = slowness();
	if (!s->group) return;
	pthread_mutex_lock(&recording);
	uint64_t all = 0;
	for (uint32_t i = 0; i < n; i++) {
		struct recorded *r = recorded(list[i]);
		for (uint32_t k = 0; k < r->n; k++) {
			int at = place_of(r->stamps[k].pool, r->stamps[k].query);
			times[at].pool = r->stamps[k].pool;
			times[at].query = r->stamps[k].query;
			times[at].ticks = device_clock + all + r->stamps[k].groups * s->group / HEAVY;
		}
		all += r->groups * s->group / HEAVY;
	}
	device_clock += all;
	if (all) s->count++;
	if (all > s->longest) s->longest = all;
	if (s->held && fence) {
		uint64_t start = now();
		if (idle_from > start) start = idle_from;
		idle_from = start + all;
		int i = 0;
		while (i < QUEUED - 1 && late[i].fence && late[i].fence != fence) i++;
		late[i].fence = fence;
		late[i].ready = idle_from;
	}
	pthread_mutex_unlock(&recording);
}

// remains is how long a fence is not to be signalled yet, in ns.
static uint64_t remains(uint64_t fence) {
	uint64_t left = 0, t = now();
	pthread_mutex_lock(&recording);
	for (int i = 0; i < QUEUED && late[i].fence; i++)
		if (late[i].fence == fence && late[i].ready > t) left = late[i].ready - t;
	pthread_mutex_unlock(&recording);
	return left;
}

// tells writes the ticks of the slow clock over the device's.
static void tells(W pool, W first, W count, W data, W stride) {
	if (!slowness()->group) return;
	pthread_mutex_lock(&recording);
	for (W i = 0; i < count; i++) {
		int at = place_of(pool, (uint32_t)(first + i));
		if (times[at].pool) *(uint64_t *)(data + i * stride) = times[at].ticks;
	}
	pthread_mutex_unlock(&recording);
}
