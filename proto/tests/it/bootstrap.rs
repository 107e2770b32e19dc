//! Generates everything under `src/gen` and `tests/gen` from `csi.proto`, `pluginregistration.proto` and the files
//! of csi-addons, without protoc and without a build script, and fails when the checked-in files differ. What the
//! generated code means is for the other tests; the truth is in these files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use prost_reflect::DescriptorPool;

mod redact;
mod rust_names;
mod type_list;

const REGENERATE: &str = "OMNIBUS_REGENERATE=1 cargo test -p csi-proto --test it bootstrap";
const PACKAGE: &str = "csi.v1";
/// The packages of csi-addons, each a file of that name.
pub(crate) const ADDONS: [&str; 3] = ["identity", "fence", "reclaimspace"];
/// The start of every generated file, which warns against manual edits.
const BANNER: &str = "// @generated from csi.proto by tests/it/bootstrap.rs. Do not edit.\n\n";

/// Path below the crate, and what is to be there.
type Files = BTreeMap<&'static str, Vec<u8>>;

fn generate(crate_dir: &Path) -> Files {
    let mut compiler = protox::Compiler::new([crate_dir]).unwrap();
    compiler
        .include_imports(true)
        .include_source_info(true)
        .open_file("csi.proto")
        .unwrap();
    let with_comments = compiler.file_descriptor_set();
    // Reflection clients need the imports, but not the comments. Encoded by protox
    // because prost's own types lose the custom options.
    let encoded = compiler
        .include_source_info(false)
        .encode_file_descriptor_set();
    let pool = DescriptorPool::decode(encoded.as_slice()).unwrap();

    let masked = redact::masked_messages(&pool, PACKAGE);
    let code = generated_types(with_comments, &masked, "csi.v1.rs");
    let mut files = addons(crate_dir);
    files.extend([
        ("src/gen/csi.v1.bin", encoded),
        ("src/gen/csi.v1.rs", [BANNER.as_bytes(), &code].concat()),
        ("src/gen/pluginregistration.rs", registration(crate_dir)),
        (
            "src/gen/redact.rs",
            format!("{BANNER}{}", redact::debug_impls(&masked)).into_bytes(),
        ),
        (
            "tests/gen/types.rs",
            format!("{BANNER}{}", type_list::type_list(&pool, PACKAGE, "v1")).into_bytes(),
        ),
    ]);
    files
}

/// What is made of the files of csi-addons. Their messages contain messages of `csi.proto`, which are not made again.
fn addons(crate_dir: &Path) -> Files {
    let mut compiler = protox::Compiler::new([crate_dir]).unwrap();
    compiler.include_imports(true).include_source_info(true);
    for package in ADDONS {
        compiler.open_file(format!("{package}.proto")).unwrap();
    }
    let with_comments = compiler.file_descriptor_set();
    let encoded = compiler
        .include_source_info(false)
        .encode_file_descriptor_set();
    let pool = DescriptorPool::decode(encoded.as_slice()).unwrap();
    let banner = |package: &str| BANNER.replace("csi.proto", &format!("{package}.proto"));
    let mut files = Files::from([("src/gen/csi-addons.bin", encoded)]);
    let mut types = BANNER.replace("csi.proto", "the files of csi-addons");
    for (package, code_path, types_path) in [
        ("identity", "src/gen/identity.rs", None),
        ("fence", "src/gen/fence.rs", Some("src/gen/fence.redact.rs")),
        (
            "reclaimspace",
            "src/gen/reclaimspace.rs",
            Some("src/gen/reclaimspace.redact.rs"),
        ),
    ] {
        let masked = redact::masked_messages(&pool, package);
        assert_eq!(masked.is_empty(), types_path.is_none(), "{package}");
        let name = format!("{package}.rs");
        let code = generated_types(with_comments.clone(), &masked, &name);
        files.insert(code_path, [banner(package).as_bytes(), &code].concat());
        if let Some(path) = types_path {
            let text = format!("{}{}", banner(package), redact::debug_impls(&masked));
            files.insert(path, text.into_bytes());
        }
        types.push_str(&type_list::type_list(&pool, package, package));
    }
    files.insert("tests/gen/addons.rs", types.into_bytes());
    files
}

fn registration(crate_dir: &Path) -> Vec<u8> {
    let mut compiler = protox::Compiler::new([crate_dir]).unwrap();
    let files = compiler
        .include_source_info(true)
        .open_file("pluginregistration.proto")
        .unwrap()
        .file_descriptor_set();
    let banner = BANNER.replace("csi.proto", "pluginregistration.proto");
    let code = generated_types(files, &[], "pluginregistration.rs");
    [banner.as_bytes(), &code].concat()
}

fn generated_types(
    files: tonic_prost_build::FileDescriptorSet,
    masked: &[prost_reflect::MessageDescriptor],
    name: &str,
) -> Vec<u8> {
    let out = tempfile::tempdir().unwrap();
    let mut builder = tonic_prost_build::configure();
    if name != "csi.v1.rs" {
        builder = builder.extern_path(".csi.v1", "crate::v1");
    }
    builder
        .out_dir(out.path())
        .emit_rerun_if_changed(false)
        .btree_map(".")
        .skip_debug(
            masked
                .iter()
                .map(|message| format!(".{}", message.full_name())),
        )
        .client_mod_attribute(".", r#"#[cfg(feature = "client")]"#)
        .server_mod_attribute(".", r#"#[cfg(feature = "server")]"#)
        .generate_default_stubs(true)
        .compile_fds(files)
        .unwrap();
    fs::read(out.path().join(name)).unwrap()
}

#[test]
fn checked_in_code_is_what_the_proto_generates() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let regenerate = std::env::var_os("OMNIBUS_REGENERATE").is_some();
    let mut stale = Vec::new();
    for (name, wanted) in generate(crate_dir) {
        let path = crate_dir.join(name);
        if regenerate {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, wanted).unwrap();
        } else if fs::read(&path).unwrap_or_default() != wanted {
            stale.push(name);
        }
    }
    assert!(
        stale.is_empty(),
        "out of date: {}; run: {REGENERATE}",
        stale.join(", ")
    );
}

#[test]
fn nothing_else_lies_among_the_generated_files() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let known = generate(crate_dir);
    for dir in ["src/gen", "tests/gen"] {
        for entry in fs::read_dir(crate_dir.join(dir)).unwrap() {
            let name = format!("{dir}/{}", entry.unwrap().file_name().display());
            assert!(
                known.contains_key(name.as_str()),
                "{name} is generated by nothing"
            );
        }
    }
}
