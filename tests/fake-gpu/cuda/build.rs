//! Gives the library the name under which programs look for the driver.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // The driver hands out its own functions, whatever a preloaded library defines under the same names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
