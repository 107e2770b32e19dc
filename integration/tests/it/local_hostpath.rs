//! The conformance suite over local-hostpath.

use integration::conformance::local_hostpath::LocalHostpath;
use integration::suite;

suite!(LocalHostpath);
