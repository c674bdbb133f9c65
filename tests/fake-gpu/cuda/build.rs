//! Gives the library the file name (soname) under which programs look for the driver.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // The driver must return its own functions, even if a preloaded library defines functions with the same names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
