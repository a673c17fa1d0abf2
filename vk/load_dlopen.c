//go:build !windows

#include "abi.h"

#include <dlfcn.h>
#include <stdio.h>

void *vm_load(const char *path, char *err, size_t n) {
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		snprintf(err, n, "%s", dlerror());
		return NULL;
	}
	void *p = dlsym(lib, "vkGetInstanceProcAddr");
	if (!p) snprintf(err, n, "%s has no vkGetInstanceProcAddr", path);
	return p;
}
