//! How the preload library is linked.

fn main() {
    // Its threads serve the process to its end: dlclose(3) may not take their code away.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // What a VMM that links it looks for, whatever path it was linked by.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbindery_shim.so");
    println!("cargo::rerun-if-changed=build.rs");
}
