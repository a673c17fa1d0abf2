// What the device pretends to be: another driver's, one that tells why it was lost, one that knows
// how much memory is left; and kernels with other constants. pretend.go has the layout of the
// struct. Included by interposer.c.

enum { FAULT_EXT = 1, FAULT_KHR = 2, BUDGET_ABSENT = 1, BUDGET_MADE_UP = 2, TYPES = 8, HEAPS = 4 };

struct pretend {
	_Atomic uint32_t driver; // VkDriverId; 0: its own
	_Atomic uint32_t range;  // bytes that a descriptor can cover; 0: its own limit
	_Atomic uint32_t module; // bytes of the module whose constants are changed; 0: of none
	_Atomic uint32_t ids[2], values[2];
	_Atomic uint32_t changed; // pipelines so changed
	_Atomic uint32_t fault;   // which extension there is, or 0
	_Atomic uint32_t faults;  // how much it has to tell, of each kind
	_Atomic uint32_t enabled; // FAULT_EXT, FAULT_KHR: whether the last device was made with it
	_Atomic uint32_t asked;   // how often it was asked
	_Atomic uint32_t budget;  // BUDGET_ABSENT, BUDGET_MADE_UP; 0: the driver's own
	_Atomic uint32_t left, used; // of every heap, in MiB
	_Atomic uint32_t kind;       // VkPhysicalDeviceType + 1; 0: its own
	_Atomic uint32_t most;       // KiB of a buffer and of an allocation; 0: its own limits
	_Atomic uint32_t types, heaps; // kinds of memory and memories; 0: its own
	_Atomic uint32_t type_flags[TYPES], type_heap[TYPES];
	_Atomic uint32_t heap_flags[HEAPS], heap_size[HEAPS], heap_used[HEAPS]; // sizes in KiB
	_Atomic uint32_t refused; // allocations for which there was no room
	_Atomic uint32_t says;    // the extension that tells of compute units, from 1; 0: the driver's own
	_Atomic uint32_t units[3]; // whose product is their number
	_Atomic uint32_t vendor, chip; // ids of the PCI bus; 0: its own
};

static struct pretend *pretended(void);

struct chain { // of structures
	uint32_t type;
	struct chain *next;
	uint32_t words[64];
};

static struct chain *find(void *first, uint32_t type) {
	struct chain *c = first;
	while (c && c->type != type) c = c->next;
	return c;
}

// Extensions that tell how many compute units a device has, and their structures: at which word.
static const struct {
	const char *name;
	uint32_t type, at;
} telling[] = {
	{"VK_NV_shader_sm_builtins", 1000154001, 0}, {"VK_AMD_shader_core_properties2", 1000227000, 1},
	{"VK_AMD_shader_core_properties", 1000185000, 0}, {"VK_ARM_shader_core_builtins", 1000497001, 2},
};

// say_units lets the extension that is asked for tell the number, one of AMD's by its factors.
static void say_units(void *first) {
	uint32_t i = pretended()->says - 1;
	if (i > 3) return;
	struct chain *c = find(first, telling[i].type);
	_Atomic uint32_t *units = pretended()->units;
	if (!c) return;
	for (int k = 0; k < 3; k++)
		if (i == 2) c->words[k] = units[k];
	if (i != 2) c->words[telling[i].at] = units[0] * units[1] * units[2];
}

REAL(vkGetPhysicalDeviceProperties2);
static void our_vkGetPhysicalDeviceProperties2(W a, W b, W c) {
	((Void)real_vkGetPhysicalDeviceProperties2)(a, b, c);
	struct chain *driver = find((void *)b, 1000196000);
	if (driver && pretended()->driver) driver->words[0] = pretended()->driver;
	const int limits = 16 + 296, max_storage_buffer_range = 28; // bytes, in VkPhysicalDeviceProperties2 and its limits
	if (pretended()->kind) *(uint32_t *)(b + 16 + 16) = pretended()->kind - 1;
	if (pretended()->most) {
		uint64_t most = (uint64_t)pretended()->most << 10;
		struct chain *v11 = find((void *)b, 50), *buffers = find((void *)b, 1000413001);
		if (v11) memcpy((char *)v11->words + 88, &most, 8); // maxMemoryAllocationSize
		if (buffers) memcpy(buffers->words, &most, 8);
	}
	if (pretended()->vendor) {
		((uint32_t *)(b + 16))[2] = pretended()->vendor;
		((uint32_t *)(b + 16))[3] = pretended()->chip;
	}
	say_units((void *)b);
	if (pretended()->range) *(uint32_t *)(b + limits + max_storage_buffer_range) = pretended()->range;
}

REAL(vkGetPhysicalDeviceFeatures2);
static void our_vkGetPhysicalDeviceFeatures2(W a, W b, W c) {
	((Void)real_vkGetPhysicalDeviceFeatures2)(a, b, c);
	struct chain *f = find((void *)b, pretended()->fault == FAULT_EXT ? 1000341000 : 1000573000);
	if (f && pretended()->fault) f->words[0] = 1;
}

struct extension {
	char name[256];
	uint32_t version;
};

static const char *fault_name(void) { return pretended()->fault == FAULT_EXT ? "VK_EXT_device_fault" : "VK_KHR_device_fault"; }

// made_up tells extensions that the driver is to know nothing of.
static int made_up(const char *name) { return pretended()->fault && !strcmp(name, fault_name()); }

static int absent(const char *name) {
	return pretended()->budget == BUDGET_ABSENT && !strcmp(name, "VK_EXT_memory_budget");
}

REAL(vkEnumerateDeviceExtensionProperties);
static int list_extensions(ARGS) {
	uint32_t n = 0, m = 0, *count = (uint32_t *)c;
	if (b) return PASS(vkEnumerateDeviceExtensionProperties);
	W to = d;
	c = (W)&n;
	d = 0;
	int code = PASS(vkEnumerateDeviceExtensionProperties);
	struct extension *list = calloc(n + 3, sizeof *list), *out = (struct extension *)to;
	d = (W)list;
	if (code == SUCCESS) code = PASS(vkEnumerateDeviceExtensionProperties);
	for (uint32_t i = 0; i < n; i++)
		if (!absent(list[i].name) && !made_up(list[i].name)) list[m++] = list[i];
	if (pretended()->fault) strcpy(list[m++].name, fault_name());
	if (pretended()->says) strcpy(list[m++].name, telling[pretended()->says - 1].name);
	if (pretended()->budget == BUDGET_MADE_UP) strcpy(list[m++].name, "VK_EXT_memory_budget");
	if (code == SUCCESS && !out) *count = m;
	if (code == SUCCESS && out) {
		if (*count < m) code = 5; // INCOMPLETE
		else *count = m;
		memcpy(out, list, *count * sizeof *list);
	}
	free(list);
	return code;
}

// The layout of VkPhysicalDeviceMemoryProperties.
struct memories {
	uint32_t types;
	struct { uint32_t flags, heap; } type[32];
	uint32_t heaps;
	struct { uint64_t size; uint32_t flags, pad; } heap[16];
};

static void our_memories(struct memories *m) {
	if (!pretended()->types) return;
	m->types = pretended()->types;
	m->heaps = pretended()->heaps;
	for (int i = 0; i < TYPES; i++) {
		m->type[i].flags = pretended()->type_flags[i];
		m->type[i].heap = pretended()->type_heap[i];
	}
	for (int i = 0; i < HEAPS; i++) {
		m->heap[i].flags = pretended()->heap_flags[i];
		m->heap[i].size = (uint64_t)pretended()->heap_size[i] << 10;
	}
}

REAL(vkGetPhysicalDeviceMemoryProperties);
static void our_vkGetPhysicalDeviceMemoryProperties(W a, W b, W c) {
	((Void)real_vkGetPhysicalDeviceMemoryProperties)(a, b, c);
	our_memories((struct memories *)b);
}

// What is allocated of made-up memory. The driver's own first type has it all.
static struct { uint64_t memory; uint32_t type, heap, size; } taken[4096];

REAL(vkGetBufferMemoryRequirements);
static void our_vkGetBufferMemoryRequirements(W a, W b, W c) {
	((Void)real_vkGetBufferMemoryRequirements)(a, b, c);
	if (pretended()->types) ((uint32_t *)c)[4] = (1u << pretended()->types) - 1;
}

// The layout of VkMemoryAllocateInfo.
struct allocate {
	uint64_t type;
	void *next;
	uint64_t size;
	uint32_t index;
};

REAL(vkAllocateMemory);
static int allocate(W a, struct allocate *info, W c, uint64_t *memory) {
	Call4 real = (Call4)real_vkAllocateMemory;
	struct pretend *p = pretended();
	if (!p->types) return real(a, (W)info, c, (W)memory);
	struct allocate own = *info;
	uint32_t heap = p->type_heap[info->index], size = (uint32_t)((info->size + 1023) >> 10);
	if (info->index >= p->types || size > p->heap_size[heap] - p->heap_used[heap] || (p->most && size > p->most)) {
		p->refused++;
		return -2;
	}
	own.index = 0;
	int code = real(a, (W)&own, c, (W)memory);
	for (int i = 0; code == 0 && i < 4096; i++)
		if (!taken[i].memory) {
			taken[i].memory = *memory;
			taken[i].type = info->index;
			taken[i].heap = heap;
			p->heap_used[heap] += taken[i].size = size;
			break;
		}
	return code;
}

// may_map tells whether memory is of a type that the host can map.
static int may_map(uint64_t memory) {
	for (int i = 0; i < 4096; i++)
		if (taken[i].memory == memory) return pretended()->type_flags[taken[i].type] & 2;
	return 1;
}

static void give_back(uint64_t memory) {
	for (int i = 0; memory && i < 4096; i++)
		if (taken[i].memory == memory) {
			pretended()->heap_used[taken[i].heap] -= taken[i].size;
			taken[i].memory = 0;
		}
}

REAL(vkGetPhysicalDeviceMemoryProperties2);
static void our_vkGetPhysicalDeviceMemoryProperties2(W a, W b, W c) {
	((Void)real_vkGetPhysicalDeviceMemoryProperties2)(a, b, c);
	struct chain *found = find((void *)b, 1000237000);
	our_memories((struct memories *)(b + 16));
	if (!found || pretended()->budget != BUDGET_MADE_UP) return;
	uint64_t *bytes = (uint64_t *)found->words;
	for (int i = 0; i < 16; i++) {
		bytes[i] = (uint64_t)pretended()->left << 20;
		bytes[16 + i] = (uint64_t)pretended()->used << 20;
	}
}

// The layout of VkDeviceCreateInfo on machines of 64 bits.
struct create {
	uint32_t type;
	struct chain *next;
	uint32_t flags, queues;
	void *queue;
	uint32_t layers;
	void *layer;
	uint32_t extensions;
	const char *const *extension;
	void *features;
};

// create_device takes what is made up out of the request.
static int create_device(int (*real)(W, W, W, W), W phys, W info, W c, W d) {
	struct create x = *(struct create *)info;
	const char *names[64];
	uint32_t n = 0, named = 0, wanted = 0;
	for (uint32_t i = 0; i < x.extensions && n < 64; i++) {
		if (made_up(x.extension[i])) named = pretended()->fault;
		else names[n++] = x.extension[i];
	}
	x.extensions = n;
	x.extension = names;
	for (struct chain *p = (struct chain *)&x; p->next; p = p->next) {
		if (p->next->type == 1000341000 || p->next->type == 1000573000) {
			wanted = p->next->words[0];
			p->next = p->next->next;
			break;
		}
	}
	pretended()->enabled = wanted ? named : 0;
	return real(phys, (W)&x, c, d);
}

static uint64_t patched[16]; // modules whose constants are changed
static _Atomic uint32_t patches;

static void made_module(uint64_t size, uint64_t module) {
	if (pretended()->module && size == pretended()->module) patched[patches++ % 16] = module;
}

// The layout of VkComputePipelineCreateInfo, as far as it is needed.
struct special {
	uint32_t count;
	const struct { uint32_t id, offset; uint64_t size; } *map;
	uint64_t bytes;
	const uint32_t *data;
};
struct pipeline {
	uint32_t type;
	void *next;
	uint32_t flags, pad, stage_type;
	void *stage_next;
	uint32_t stage_flags, stage;
	uint64_t module;
	const char *name;
	const struct special *special;
	uint64_t layout, base;
	int32_t index;
};

// change_constants gives a pipeline of such a module the constants that are asked for.
static void change_constants(struct pipeline *p, struct special *s, uint32_t *data) {
	int ours = 0;
	for (int i = 0; i < 16; i++) ours |= p->module && patched[i] == p->module;
	if (!ours || !pretended()->module || !p->special || p->special->bytes > 256) return;
	*s = *p->special;
	memcpy(data, s->data, s->bytes);
	for (uint32_t i = 0; i < s->count; i++)
		for (int k = 0; k < 2; k++)
			if (s->map[i].id == pretended()->ids[k]) data[s->map[i].offset / 4] = pretended()->values[k];
	s->data = data;
	p->special = s;
	pretended()->changed++;
}

struct address {
	uint32_t type;
	uint64_t at, precision;
};
struct vendor {
	char text[256];
	uint64_t code, data;
};

static void say(char *to, const char *what, int i) {
	strcpy(to, what);
	size_t n = strlen(to);
	to[n] = '0' + i % 10;
	to[n + 1] = '\a'; // drivers write what they like
	to[n + 2] = 0;
}

static struct address made_up_address(int i) { return (struct address){1 + i % 6, 0x1000 * (uint64_t)(i + 1), 0x100}; }

static struct vendor made_up_vendor(int i) {
	struct vendor v = {"", 0xc0de + i, 0xda7a};
	say(v.text, "ring ", i);
	return v;
}

struct counts {
	uint32_t type;
	void *next;
	uint32_t addresses, vendors;
	uint64_t binary;
};
struct info {
	uint32_t type;
	void *next;
	char text[256];
	struct address *addresses;
	struct vendor *vendors;
	void *binary;
};

static int is_lost(void);

static int our_vkGetDeviceFaultInfoEXT(void *device, struct counts *n, struct info *to) {
	uint32_t have = pretended()->faults, incomplete = 0;
	pretended()->asked++;
	if (!is_lost()) abort(); // a driver may do anything then
	if (!to) {
		n->addresses = n->vendors = have;
		n->binary = 1 << 20;
		return 0;
	}
	if (n->addresses < have || n->vendors < have || n->binary < 1 << 20) incomplete = 5;
	if (n->addresses > have) n->addresses = have;
	if (n->vendors > have) n->vendors = have;
	n->binary = 0;
	say(to->text, "page fault ", 0);
	for (uint32_t i = 0; i < n->addresses; i++) to->addresses[i] = made_up_address(i);
	for (uint32_t i = 0; i < n->vendors; i++) to->vendors[i] = made_up_vendor(i);
	return incomplete;
}

struct report {
	uint32_t type;
	void *next;
	uint32_t flags;
	uint64_t group;
	char text[256];
	struct address memory, instruction;
	struct vendor vendor;
};

static int our_vkGetDeviceFaultReportsKHR(void *device, uint64_t timeout, uint32_t *n, struct report *to) {
	uint32_t have = pretended()->faults, room = *n;
	pretended()->asked++;
	if (!to) {
		*n = have;
		return have ? 0 : TIMEOUT;
	}
	if (room > have) *n = room = have;
	for (uint32_t i = 0; i < room; i++) {
		to[i].flags = i % 2 ? 0x1f : 0x1; // lost; addresses, the vendor's words and the watchdog
		say(to[i].text, "watchdog ", i);
		to[i].memory = made_up_address(0);
		to[i].instruction = made_up_address(3);
		to[i].vendor = made_up_vendor(i);
	}
	return room < have ? 5 : 0;
}

// made_up_call is a call that the driver does not know.
static void *made_up_call(const char *name) {
	if (pretended()->fault == FAULT_EXT && !strcmp(name, "vkGetDeviceFaultInfoEXT")) return (void *)our_vkGetDeviceFaultInfoEXT;
	if (pretended()->fault == FAULT_KHR && !strcmp(name, "vkGetDeviceFaultReportsKHR")) return (void *)our_vkGetDeviceFaultReportsKHR;
	return NULL;
}
