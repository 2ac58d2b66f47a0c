//! Keeps C functions of dependencies, which this library would export too, to itself.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let has = |variable: &str, value: &str| std::env::var(variable).is_ok_and(|it| it == value);
    if has("CARGO_CFG_TARGET_OS", "linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    }
}
