//! Gives the library the name under which programs are linked against a driver.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Its entry points call each other directly, also if another library interposes their names,
    // as the real driver's do.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Its threads and handlers outlive any dlclose, as the real driver's do.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
