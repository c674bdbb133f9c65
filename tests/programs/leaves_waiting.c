/*
 * One thread launches, and meanwhile the first thread does what the argument says: "exec" (the new program launches
 * too), "fork" (a child that has not used CUDA launches, and its parent waits for it), or "exit".
 */
#include "program.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

static CUcontext context;
static CUfunction kernel;

static void *launch(void *unused) {
    REQUIRE(cuCtxSetCurrent(context));
    REQUIRE(spin(kernel, NULL, 1000000));
    return unused;
}

/* Launches like a program that does not know of the other one. */
static int launch_afresh(void) {
    context = use_device();
    kernel = spin_kernel();
    printf("launches afresh\n");
    fflush(stdout);
    launch(NULL);
    REQUIRE(cuCtxSynchronize());
    printf("done afresh\n");
    return 0;
}

static void wait_for_signal(void) {
    sigset_t wanted;
    int signal;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGUSR1);
    printf("launches\n");
    fflush(stdout);
    EXPECT(sigwait(&wanted, &signal) == 0);
}

int main(int count, char **arguments) {
    EXPECT(count == 2);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(arguments[1], "afresh"))
        return launch_afresh();
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    EXPECT(sigprocmask(SIG_BLOCK, &blocked, NULL) == 0);
    context = use_device();
    kernel = spin_kernel();
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, launch, NULL) == 0);
    wait_for_signal();
    char *command[] = {arguments[0], "afresh", NULL};
    if (!strcmp(arguments[1], "exit"))
        exit(7);
    if (!strcmp(arguments[1], "exec")) {
        execv(command[0], command);
        return 127;
    }
    int status;
    pid_t child = fork();
    if (child == 0) {
        execv(command[0], command);
        _exit(127);
    }
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT(pthread_join(thread, NULL) == 0);
    REQUIRE(cuCtxSynchronize());
    printf("done\n");
    return 0;
}
