#include "abi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

// Paths are UTF-8. A bare name is looked for beside the program and in the system's folder, where
// drivers put the loader, and never in the current folder.
void *vm_load(const char *path, char *err, size_t n) {
	int length = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, NULL, 0);
	WCHAR *wide = length ? calloc(length, sizeof *wide) : NULL;
	if (!wide) {
		snprintf(err, n, "%s: not a path in UTF-8", path);
		return NULL;
	}
	MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, length);
	HMODULE lib = LoadLibraryExW(wide, NULL, strpbrk(path, "/\\:") ? 0 : LOAD_LIBRARY_SEARCH_DEFAULT_DIRS);
	free(wide);
	if (!lib) {
		snprintf(err, n, "%s: LoadLibrary: error %lu", path, GetLastError());
		return NULL;
	}
	void *p = (void *)GetProcAddress(lib, "vkGetInstanceProcAddr");
	if (!p) snprintf(err, n, "%s has no vkGetInstanceProcAddr", path);
	return p;
}
