/* A library that only needs another library. */
#include <stddef.h>

void take(size_t bytes);

__attribute__((visibility("default"))) void take_through(size_t bytes) {
    take(bytes);
}
