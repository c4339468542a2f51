//! How the shared library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsmctrl.so");
    // If another crate of the build enables `libc/std`, the crate `libc` leaves linking the C
    // library to `std`, which this crate does not have. Unversioned names would then be bound to
    // the oldest functions of the C library.
    println!("cargo::rustc-cdylib-link-arg=-lc");
    // `alloc` is compiled for unwinding and refers to `_Unwind_Resume`. A C compiler links its
    // library by default; rustc does not.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--as-needed");
    // An argument of its own, which linkers that bring their own library replace.
    println!("cargo::rustc-cdylib-link-arg=-lgcc_s");
}
