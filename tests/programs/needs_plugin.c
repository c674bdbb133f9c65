/* A library that does nothing but need another one. */
#include <stddef.h>

void take(size_t bytes);

__attribute__((visibility("default"))) void take_through(size_t bytes) {
    take(bytes);
}
