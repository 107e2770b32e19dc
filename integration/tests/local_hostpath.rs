//! The conformance suite over local-hostpath.
#![forbid(unsafe_code)]

use integration::conformance::local_hostpath::LocalHostpath;
use integration::suite;

suite!(LocalHostpath);
