/*
 * Executes or starts another program while it holds memory. Argument: fork, vfork, clone (which shares memory with its
 * parent until then), spawn, self, or thread (a thread executes it for the whole process). The new program is this one
 * with the argument "fresh".
 */
#include "program.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;
static char *command[3];

static int fresh(void) {
    CUdeviceptr memory;
    use_device();
    printf("fresh: free %zu MiB\n", free_bytes() / MIB);
    REQUIRE(cuMemAlloc(&memory, 8 * MIB));
    printf("fresh: took 8 MiB\n");
    REQUIRE(cuMemFree(memory));
    return 0;
}

static int become(void *unused) {
    (void)unused;
    execv(command[0], command);
    _exit(127);
}

static void *become_in_thread(void *unused) {
    become(unused);
    return NULL;
}

static pid_t start(const char *way) {
    pid_t child;
    if (!strcmp(way, "clone")) {
        static _Alignas(16) char stack[64 << 10];
        return clone(become, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
    }
    if (!strcmp(way, "spawn")) {
        EXPECT(posix_spawn(&child, command[0], NULL, NULL, command, environ) == 0);
        return child;
    }
    child = !strcmp(way, "vfork") ? vfork() : fork();
    if (child == 0)
        become(NULL);
    return child;
}

int main(int count, char **arguments) {
    EXPECT(count == 2);
    if (!strcmp(arguments[1], "fresh"))
        return fresh();
    CUdeviceptr memory;
    int status;
    command[0] = arguments[0];
    command[1] = "fresh";
    use_device();
    REQUIRE(cuMemAlloc(&memory, 16 * MIB));
    printf("holding 16 MiB: free %zu MiB\n", free_bytes() / MIB);
    fflush(stdout);
    if (!strcmp(arguments[1], "self"))
        become(NULL);
    if (!strcmp(arguments[1], "thread")) {
        pthread_t thread;
        EXPECT(pthread_create(&thread, NULL, become_in_thread, NULL) == 0);
        pthread_join(thread, NULL);
    }
    pid_t child = start(arguments[1]);
    EXPECT(child > 0 && waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    printf("parent: free %zu MiB\n", free_bytes() / MIB);
    return 0;
}
