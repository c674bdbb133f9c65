//! Link options of the shim.

fn main() {
    // -z defs: a reachable panic calls an undefined function (see src/panic.rs) and so fails the link. -z now: nothing
    // is looked up later, when the host may be in any state. -z nodelete: hosts keep pointers to the hooks, also after
    // dlclose. -Bsymbolic-functions: where the shim means its own function it gets it, also in a host that defines
    // dlsym or a hook's name itself. Not -Bsymbolic, which would make the loader search the shim first where the shim
    // asks on behalf of the host.
    for argument in ["-z,defs", "-z,now", "-z,nodelete", "-Bsymbolic-functions", "--build-id=none", "--strip-all"] {
        println!("cargo::rustc-cdylib-link-arg=-Wl,{argument}");
    }
    // A library that does not say that it keeps to shadow stacks switches them off for the whole process. All calls
    // here return, or end in jumps that leave the return address in place.
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|architecture| architecture == "x86_64") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,shstk");
    }
    // A no_std library is linked without the C library unless it asks.
    println!("cargo::rustc-cdylib-link-arg=-lc");
    println!("cargo::rerun-if-changed=build.rs");
}
