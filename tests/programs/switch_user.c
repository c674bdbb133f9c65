/* Becomes the user and group of the first argument, and executes the remaining arguments as a program, as su does. */
#define NOT_LINKED
#include "program.h"

#include <grp.h>

int main(int count, char **arguments) {
    EXPECT(count > 2);
    unsigned id = strtoul(arguments[1], NULL, 10);
    EXPECT(setgroups(0, NULL) == 0 && setresgid(id, id, id) == 0 && setresuid(id, id, id) == 0);
    execv(arguments[2], arguments + 2);
    EXPECT(!"the program can be run");
}
