# nomad volume create deploy/nomad/volume.hcl
id        = "web"
name      = "web"
type      = "csi"
plugin_id = "org.example.csi"

capacity_min = "1GiB"
capacity_max = "10GiB"

capability {
  access_mode     = "multi-node-multi-writer"
  attachment_mode = "file-system"
}

mount_options {
  mount_flags = ["noatime"]
}

parameters {
  connection = "fast-1"
}
