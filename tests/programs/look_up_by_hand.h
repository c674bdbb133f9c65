/*
 * Finds functions in a library without the loader's help, so that preloaded libraries do not notice. Include after
 * program.h.
 */
#pragma once

#include <elf.h>
#include <link.h>

/* Searches the symbol table of a loaded library. Linkers put the string table directly after the symbol table. */
static void *look_up_by_hand(void *library, const char *name) {
    struct link_map *map = library;
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB)
            symbols = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB)
            names = (const void *)entry->d_un.d_ptr;
    }
    EXPECT(symbols && names && (const char *)symbols < names);
    for (const ElfW(Sym) *symbol = symbols; (const char *)(symbol + 1) <= names; symbol++)
        if (symbol->st_shndx != SHN_UNDEF && strcmp(names + symbol->st_name, name) == 0)
            return (void *)(map->l_addr + symbol->st_value);
    return NULL;
}
