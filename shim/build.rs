//! Link options of the shim.

fn main() {
    // -z defs: a reachable panic calls an undefined function (see src/panic.rs), which fails the link. -z now: no
    // symbol is looked up later, when the host may be in any state. -z nodelete: hosts keep pointers to the hooks, even
    // after dlclose. -Bsymbolic-functions: a call of the shim's own function reaches it, even in a host that defines
    // dlsym or a hook's name itself. Not -Bsymbolic: with it the loader would search the shim first when the shim asks
    // on behalf of the host.
    for argument in ["-z,defs", "-z,now", "-z,nodelete", "-Bsymbolic-functions", "--build-id=none", "--strip-all"] {
        println!("cargo::rustc-cdylib-link-arg=-Wl,{argument}");
    }
    // A library that does not declare that it supports shadow stacks switches them off for the whole process. All calls
    // here return, or end in jumps that leave the return address in place.
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|architecture| architecture == "x86_64") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,shstk");
    }
    // A no_std library is linked without the C library unless it asks for it.
    println!("cargo::rustc-cdylib-link-arg=-lc");
    println!("cargo::rerun-if-changed=build.rs");
}
