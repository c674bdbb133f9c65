/*
 * A malicious other user, until it is killed: tries to open, truncate, lock, rename, remove and overwrite everything
 * below a directory, connects to every socket there that the kernel lists, and sends random bytes. Also tries to access
 * memory and open files of processes. Prints what it could change. Arguments: the directory; the ids of processes.
 */
#define NOT_LINKED
#include "program.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

enum { PATH_BYTES = 512, SOCKETS_MAX = 64 };

static const char *root;
static int sockets[SOCKETS_MAX], next_socket;
static unsigned long rounds;

static void tell(const char *what, const char *path) {
    printf("%s %s\n", what, path);
    fflush(stdout);
}

/* Connects and leaves the connection open. Only SOCKETS_MAX connections are kept; the oldest is closed first. */
static void connect_to(const char *path, int type) {
    static const char rubbish[4096] = {1};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int connection = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (connection < 0 || strlen(path) >= sizeof address.sun_path)
        return;
    strcpy(address.sun_path, path);
    if (connect(connection, (struct sockaddr *)&address, sizeof address) == 0)
        (void)!send(connection, rubbish, (rounds * 31) % sizeof rubbish, MSG_NOSIGNAL);
    if (sockets[next_socket])
        close(sockets[next_socket]);
    sockets[next_socket] = connection;
    next_socket = (next_socket + 1) % SOCKETS_MAX;
}

static void spoil_file(const char *path) {
    static const char rubbish[256] = {(char)0xa5};
    char other[PATH_BYTES + 8];
    int file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (file >= 0) {
        tell("opened for writing", path);
        (void)!pwrite(file, rubbish, sizeof rubbish, 4096);
        (void)!flock(file, LOCK_EX | LOCK_NB);
        close(file);
    }
    if (truncate(path, 0) == 0)
        tell("truncated", path);
    if (chmod(path, 0777) == 0)
        tell("changed the mode of", path);
    snprintf(other, sizeof other, "%s.gone", path);
    if (rename(path, other) == 0)
        tell("renamed", path);
    if (unlink(path) == 0)
        tell("removed", path);
}

static void spoil_directory(const char *path, int depth) {
    char below[PATH_BYTES];
    DIR *directory = opendir(path);
    snprintf(below, sizeof below, "%s/stranger", path);
    int file = open(below, O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
    if (file >= 0) {
        tell("made a file in", path);
        close(file);
        unlink(below);
    }
    if (!directory)
        return;
    for (struct dirent *entry = readdir(directory); entry; entry = readdir(directory)) {
        struct stat status;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (snprintf(below, sizeof below, "%s/%s", path, entry->d_name) >= (int)sizeof below || lstat(below, &status) != 0)
            continue;
        if (S_ISDIR(status.st_mode) && depth < 8)
            spoil_directory(below, depth + 1);
        else if (S_ISSOCK(status.st_mode))
            connect_to(below, SOCK_STREAM);
        else
            spoil_file(below);
    }
    closedir(directory);
}

/* The kernel shows all users the paths of all sockets, and so the names of directories that cannot be listed. */
static void spoil_beside_sockets(void) {
    char line[1024];
    FILE *list = fopen("/proc/net/unix", "re");
    if (!list)
        return;
    while (fgets(line, sizeof line, list)) {
        static const char *const names[] = {"ledger", "limits", "attach.sock"};
        char directory[PATH_BYTES], below[PATH_BYTES + 16];
        char *path = strchr(line, '/');
        if (!path || strncmp(path, root, strlen(root)))
            continue;
        path[strcspn(path, "\n")] = '\0';
        connect_to(path, SOCK_STREAM);
        connect_to(path, SOCK_SEQPACKET);
        snprintf(directory, sizeof directory, "%.*s", (int)(strrchr(path, '/') - path), path);
        spoil_directory(directory, 0);
        for (size_t name = 0; name < sizeof names / sizeof *names; name++) {
            snprintf(below, sizeof below, "%s/%s", directory, names[name]);
            spoil_file(below);
        }
    }
    fclose(list);
}

static void spoil_process(const char *pid) {
    char path[PATH_BYTES];
    struct stat status;
    snprintf(path, sizeof path, "/proc/%s/mem", pid);
    if (stat(path, &status) == 0)
        spoil_file(path);
    snprintf(path, sizeof path, "/proc/%s/root", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    if (file >= 0) {
        tell("entered", path);
        close(file);
    }
    snprintf(path, sizeof path, "/proc/%s/fd", pid);
    DIR *descriptors = opendir(path);
    if (descriptors) {
        tell("listed", path);
        closedir(descriptors);
    }
    if (kill(atoi(pid), SIGSTOP) == 0)
        tell("stopped process", pid);
}

int main(int count, char **arguments) {
    EXPECT(count >= 2);
    /* Never run this as root, which owns all these files. */
    EXPECT(geteuid() != 0);
    root = arguments[1];
    for (;;) {
        spoil_directory(root, 0);
        spoil_beside_sockets();
        for (int i = 2; i < count; i++)
            spoil_process(arguments[i]);
        if (++rounds == 1)
            tell("gone through all of", root);
    }
}
