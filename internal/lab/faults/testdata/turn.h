// A driver that turns the order of commands around wherever it may: those between two barriers are
// recorded from the last to the first. What needs a barrier and has none comes out wrong. Included by
// interposer.c.

enum { STRAIGHT, TURNED, BLIND }; // BLIND: barriers count for nothing

static uint32_t turning(void);

struct command {
	enum { DISPATCH, FILL, COPY } kind;
	W pipeline, layout, set, args[6];
	W push_layout, push_size;
	unsigned char push[256];
};

// A command buffer: the state of the next dispatch, and commands since the last barrier.
struct turned {
	uint64_t buffer;
	struct command state, *list;
	uint32_t n, room;
};

static pthread_mutex_t turn_lock = PTHREAD_MUTEX_INITIALIZER;
static struct turned turns[SLOTS];

static struct turned *turned(uint64_t buffer) {
	pthread_mutex_lock(&turn_lock);
	uint32_t i = slot(buffer);
	for (uint32_t n = 0; turns[i].buffer && turns[i].buffer != buffer; i = (i + 1) % SLOTS)
		if (++n == SLOTS) abort(); // too many command buffers for this table
	turns[i].buffer = buffer;
	pthread_mutex_unlock(&turn_lock);
	return &turns[i];
}

static struct command *later(W buffer, int kind) {
	struct turned *t = turned(buffer);
	if (t->n == t->room && !(t->list = realloc(t->list, (t->room += 64) * sizeof *t->list))) abort();
	struct command *c = &t->list[t->n++];
	*c = t->state;
	c->kind = kind;
	return c;
}

REAL(vkCmdBindDescriptorSets);
REAL(vkCmdPushConstants);
REAL(vkCmdFillBuffer);
REAL(vkCmdCopyBuffer);
REAL(vkCmdPipelineBarrier);

static void turn_begins(W buffer) { turned(buffer)->n = 0; }

// turn_ends records the commands that wait, the last one first.
static void turn_ends(W a) {
	struct turned *t = turned(a);
	while (t->n) {
		struct command *c = &t->list[--t->n];
		W *x = c->args;
		switch (c->kind) {
		case DISPATCH:
			((Void)real_vkCmdBindPipeline)(a, 1, c->pipeline);
			((Call)real_vkCmdBindDescriptorSets)(a, 1, c->layout, 0, 1, (W)&c->set, 0, 0);
			if (c->push_size)
				((void (*)(W, W, uint32_t, uint32_t, uint32_t, void *))real_vkCmdPushConstants)(a, c->push_layout, 0x20, 0, c->push_size, c->push);
			if (real_vkCmdDispatchBase && (x[0] || x[1] || x[2]))
				((void (*)(W, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t))real_vkCmdDispatchBase)(a, x[0], x[1], x[2], x[3], x[4], x[5]);
			else
				((void (*)(W, uint32_t, uint32_t, uint32_t))real_vkCmdDispatch)(a, x[3], x[4], x[5]);
			break;
		case FILL: ((void (*)(W, W, W, W, uint32_t))real_vkCmdFillBuffer)(a, x[0], x[1], x[2], x[3]); break;
		case COPY: ((void (*)(W, W, W, uint32_t, W *))real_vkCmdCopyBuffer)(a, x[0], x[1], 1, x + 2);
		}
	}
}

// turns_dispatch keeps a dispatch for later, if commands are turned around.
static int turns_dispatch(W a, W i, W j, W k, W x, W y, W z) {
	if (!turning()) return 0;
	memcpy(later(a, DISPATCH)->args, (W[]){i, j, k, x, y, z}, sizeof(W[6]));
	return 1;
}

static int turns_pipeline(W a, W pipeline) {
	if (!turning()) return 0;
	turned(a)->state.pipeline = pipeline;
	turned(a)->state.push_size = 0;
	return 1;
}

static void our_vkCmdBindDescriptorSets(W a, W point, W layout, W first, W count, W *sets, W dynamic, W offsets) {
	if (!turning()) {
		((Call)real_vkCmdBindDescriptorSets)(a, point, layout, first, count, (W)sets, dynamic, offsets);
		return;
	}
	if ((uint32_t)first || (uint32_t)count != 1 || (uint32_t)dynamic) abort();
	turned(a)->state.layout = layout;
	turned(a)->state.set = *sets;
}

static void our_vkCmdPushConstants(W a, W layout, uint32_t stages, uint32_t offset, uint32_t size, void *values) {
	struct command *s = &turned(a)->state;
	if (!turning()) {
		((void (*)(W, W, uint32_t, uint32_t, uint32_t, void *))real_vkCmdPushConstants)(a, layout, stages, offset, size, values);
		return;
	}
	if (offset || size > sizeof s->push) abort();
	s->push_layout = layout;
	s->push_size = size;
	memcpy(s->push, values, size);
}

static void our_vkCmdFillBuffer(W a, W buffer, W offset, W size, uint32_t word) {
	if (turning())
		memcpy(later(a, FILL)->args, (W[]){buffer, offset, size, word}, sizeof(W[4]));
	else
		((void (*)(W, W, W, W, uint32_t))real_vkCmdFillBuffer)(a, buffer, offset, size, word);
}

static void our_vkCmdCopyBuffer(W a, W from, W to, uint32_t count, W *regions) {
	for (uint32_t i = 0; turning() && i < count; i++)
		memcpy(later(a, COPY)->args, (W[]){from, to, regions[3 * i], regions[3 * i + 1], regions[3 * i + 2]}, sizeof(W[5]));
	if (!turning()) ((void (*)(W, W, W, uint32_t, W *))real_vkCmdCopyBuffer)(a, from, to, count, regions);
}

static void our_vkCmdPipelineBarrier(W a, uint32_t from, uint32_t to, uint32_t flags, uint32_t n, W memory, uint32_t m, W buffers, uint32_t k,
	W images) {
	if (turning() == BLIND) return;
	turn_ends(a);
	((void (*)(W, uint32_t, uint32_t, uint32_t, uint32_t, W, uint32_t, W, uint32_t, W))real_vkCmdPipelineBarrier)(
		a, from, to, flags, n, memory, m, buffers, k, images);
}
