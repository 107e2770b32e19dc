//! Volumes that live and die with a pod.
