/* A library that prints a message in each process that loads it. */
#include <unistd.h>

__attribute__((constructor)) static void announce(void) {
    static const char text[] = "announce: loaded\n";
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written;
}
