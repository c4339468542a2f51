//! The names under which libcuda exports each version of a call, for `cuGetProcAddress`.
//!
//! A caller of `cuGetProcAddress` passes a name without suffix and the CUDA version whose behaviour
//! it expects, and gets the newest export that is not newer than that. The table lists the exports.
//! It was compared with the answers of driver 580.159.04 (CUDA 13.0) for all of its 478 names,
//! every version and both kinds of default stream, and agrees except for
//! `cuEventCreateFromEGLSync`, which that driver does not have.

mod table;

use table::{Row, TABLE};

/// One export of libcuda.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// The name that `cuGetProcAddress` takes, such as `cuMemAlloc`.
    pub base: &'static str,
    /// The name that `dlsym` takes, such as `cuMemAlloc_v2`.
    pub export: &'static str,
    /// The CUDA version that brought it (major × 1000 + minor × 10).
    pub since: u32,
    /// Whether stream 0 means the calling thread's own default stream.
    pub per_thread: bool,
}

fn row(base: &str) -> Option<&'static Row> {
    TABLE.binary_search_by(|row| row.0.cmp(base)).ok().map(|index| &TABLE[index])
}

fn variants_of_row(row: &'static Row) -> impl Iterator<Item = Variant> {
    let variant = |per_thread| {
        move |(since, export): &(u32, &'static str)| Variant {
            base: row.0,
            export,
            since: *since,
            per_thread,
        }
    };
    row.1.iter().map(variant(false)).chain(row.2.iter().map(variant(true)))
}

/// The export that `cuGetProcAddress` returns for a name and a CUDA version (major × 1000 + minor ×
/// 10): the newest that is not newer than the version.
///
/// With `per_thread`, a call that uses the default stream has separate exports from CUDA 7.0 on,
/// and none before; for other calls it makes no difference.
///
/// `None` when the name is unknown (see [`is_known`]) or every export is newer. The driver then
/// returns success with a null pointer and the query result `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`
/// or `CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT` (`cuGetProcAddress_v2`).
pub fn resolve(base: &str, cuda_version: u32, per_thread: bool) -> Option<&'static str> {
    let (_, legacy, threaded) = row(base)?;
    let exports = if per_thread && !threaded.is_empty() { threaded } else { legacy };
    exports.iter().rev().find(|(since, _)| *since <= cuda_version).map(|(_, export)| *export)
}

/// Whether `cuGetProcAddress` knows the name in any version.
pub fn is_known(base: &str) -> bool {
    row(base).is_some()
}

/// Every export of a name, oldest first, those of the per-thread default stream last; empty for an
/// unknown name.
pub fn variants(base: &str) -> impl Iterator<Item = Variant> {
    row(base).into_iter().flat_map(variants_of_row)
}

/// Every export of every name.
pub fn all() -> impl Iterator<Item = Variant> {
    TABLE.iter().flat_map(variants_of_row)
}

/// The variant of an exported name, such as `cuMemcpyHtoD_v2_ptds`.
pub fn variant(export: &str) -> Option<Variant> {
    // The name without suffixes; no base name ends like one.
    let plain = export.strip_suffix("_ptsz").or_else(|| export.strip_suffix("_ptds")).unwrap_or(export);
    let base = match plain.rsplit_once("_v") {
        Some((base, number)) if number.bytes().all(|digit| digit.is_ascii_digit()) => base,
        _ => plain,
    };
    variants(base).find(|variant| variant.export == export)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::vec::Vec;

    #[test]
    fn well_known_calls_resolve_as_the_driver_resolves_them() {
        let cases = [
            ("cuMemAlloc", 2000, false, Some("cuMemAlloc")),
            ("cuMemAlloc", 3010, false, Some("cuMemAlloc")),
            ("cuMemAlloc", 3020, false, Some("cuMemAlloc_v2")),
            ("cuMemAlloc", 13_000, true, Some("cuMemAlloc_v2")),
            ("cuCtxCreate", 2000, false, Some("cuCtxCreate")),
            ("cuCtxCreate", 3020, false, Some("cuCtxCreate_v2")),
            ("cuCtxCreate", 11_040, false, Some("cuCtxCreate_v3")),
            ("cuCtxCreate", 13_000, false, Some("cuCtxCreate_v4")),
            ("cuLaunchKernel", 4000, false, Some("cuLaunchKernel")),
            ("cuLaunchKernel", 4000, true, None),
            ("cuLaunchKernel", 7000, true, Some("cuLaunchKernel_ptsz")),
            ("cuLaunchKernelEx", 12_000, true, Some("cuLaunchKernelEx_ptsz")),
            ("cuGetProcAddress", 11_030, false, Some("cuGetProcAddress")),
            ("cuGetProcAddress", 12_000, false, Some("cuGetProcAddress_v2")),
            ("cuGetProcAddress", 11_020, false, None),
            ("cuStreamBeginCapture", 10_000, false, Some("cuStreamBeginCapture")),
            ("cuStreamBeginCapture", 10_010, true, Some("cuStreamBeginCapture_v2_ptsz")),
            ("cuGraphInstantiate", 10_020, false, Some("cuGraphInstantiate")),
            ("cuGraphInstantiate", 13_000, false, Some("cuGraphInstantiate_v2")),
            ("cuGraphInstantiateWithFlags", 11_040, false, Some("cuGraphInstantiateWithFlags")),
            ("cuMemcpyHtoDAsync", 2000, false, Some("cuMemcpyHtoDAsync")),
            ("cuMemcpyHtoDAsync", 7000, true, Some("cuMemcpyHtoDAsync_v2_ptsz")),
            ("cuMemcpyHtoD", 7000, true, Some("cuMemcpyHtoD_v2_ptds")),
            ("cuMemcpyBatchAsync", 12_080, true, Some("cuMemcpyBatchAsync_ptsz")),
            ("cuMemcpyBatchAsync", 13_000, true, Some("cuMemcpyBatchAsync_v2_ptsz")),
            ("cuIpcOpenMemHandle", 4010, false, Some("cuIpcOpenMemHandle")),
            ("cuIpcOpenMemHandle", 11_000, false, Some("cuIpcOpenMemHandle_v2")),
            ("cuEventElapsedTime", 12_070, false, Some("cuEventElapsedTime")),
            ("cuEventElapsedTime", 12_080, false, Some("cuEventElapsedTime_v2")),
            ("cuTexRefSetAddress2D", 4010, false, Some("cuTexRefSetAddress2D_v3")),
            ("cuGLMapBufferObject", 7000, true, Some("cuGLMapBufferObject_v2_ptds")),
            ("cuInit", 1000, false, None),
            ("cuNoSuchCall", 13_000, false, None),
        ];
        for (base, version, per_thread, export) in cases {
            assert_eq!(resolve(base, version, per_thread), export, "{base} {version} {per_thread}");
        }
        assert!(is_known("cuInit"));
        assert!(!is_known("cuNoSuchCall"));
        assert!(!is_known("cuMemAlloc_v2"));
    }

    #[test]
    fn the_table_is_sorted_and_names_no_export_twice() {
        assert!(TABLE.is_sorted_by(|a, b| a.0 < b.0));
        for (name, legacy, threaded) in TABLE {
            assert!(!legacy.is_empty(), "{name}");
            assert!(legacy.is_sorted_by(|a, b| a.0 < b.0), "{name}");
            assert!(threaded.is_sorted_by(|a, b| a.0 < b.0), "{name}");
        }
        let exports: Vec<_> = all().map(|variant| variant.export).collect();
        assert_eq!(exports.iter().collect::<HashSet<_>>().len(), exports.len());
    }

    #[test]
    fn the_driver_exports_every_variant_but_one() {
        let exported: HashSet<_> = crate::exports::EXPORTS.iter().map(|export| export.name).collect();
        let missing: Vec<_> =
            all().map(|variant| variant.export).filter(|name| !exported.contains(name)).collect();
        assert_eq!(missing, ["cuEventCreateFromEGLSync"]);
    }

    #[test]
    fn exports_lead_back_to_their_names() {
        for expected in all() {
            assert_eq!(variant(expected.export), Some(expected));
            assert_eq!(resolve(expected.base, expected.since, expected.per_thread), Some(expected.export));
        }
        assert_eq!(variant("cuMemAlloc_v3"), None);
        assert_eq!(variant("cuMemAlloc_v2_ptsz"), None);
        assert_eq!(variant("cuNoSuchCall_v2"), None);
        assert_eq!(variants("cuCtxCreate").count(), 4);
    }
}
