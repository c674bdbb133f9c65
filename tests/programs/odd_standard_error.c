/*
 * Uses the driver with an unusual descriptor 2, and prints what has become of the descriptor, of its signals and of the
 * bytes in it. The argument selects the descriptor: a pipe, a full pipe, a pipe without a reader, or the program's own
 * file that got this number because standard error was closed.
 */
#include "program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

static int other_end = -1;

static void make_descriptor_2(const char *kind) {
    int ends[2] = {-1, -1};
    if (!strcmp(kind, "file")) {
        ends[1] = open("/tmp", O_TMPFILE | O_RDWR | O_APPEND, 0600);
    } else if (!strcmp(kind, "socket")) {
        EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    } else {
        EXPECT(pipe(ends) == 0);
        if (!strcmp(kind, "full")) {
            EXPECT(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
            static const char page[4096];
            while (write(ends[1], page, sizeof page) > 0)
                ;
            EXPECT(fcntl(ends[1], F_SETFL, 0) == 0);
        }
        if (!strcmp(kind, "closed"))
            close(ends[0]);
    }
    EXPECT(dup3(ends[1], 2, strcmp(kind, "own") ? 0 : O_CLOEXEC) == 2);
    other_end = ends[0];
}

/* Prints what has been written, if anything. */
static void say_what_came(const char *kind) {
    char text[256] = "";
    if (!strcmp(kind, "file")) {
        printf("bytes in the file: %d\n", (int)lseek(2, 0, SEEK_END));
    } else if (strcmp(kind, "full") && strcmp(kind, "closed")) {
        struct pollfd ready = {.fd = other_end, .events = POLLIN};
        if (poll(&ready, 1, 0) == 1)
            EXPECT(read(other_end, text, sizeof text - 1) > 0);
        printf("came: %s", *text ? text : "nothing\n");
    }
}

int main(int count, char **arguments) {
    EXPECT(count == 2);
    int errors = dup(2);
    make_descriptor_2(arguments[1]);
    CUdeviceptr address;
    use_device();
    printf("cuMemAlloc: %d\n", cuMemAlloc(&address, MIB));
    sigset_t pending, blocked;
    EXPECT(sigpending(&pending) == 0 && sigprocmask(SIG_SETMASK, NULL, &blocked) == 0);
    printf("SIGPIPE: %s, %s\n", sigismember(&pending, SIGPIPE) ? "pending" : "not pending",
           sigismember(&blocked, SIGPIPE) ? "blocked" : "not blocked");
    say_what_came(arguments[1]);
    EXPECT(dup2(errors, 2) == 2);
    return 0;
}
