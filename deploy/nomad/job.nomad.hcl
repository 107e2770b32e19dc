# A job that uses the volume of volume.hcl.
job "web" {
  datacenters = ["dc1"]

  group "web" {
    volume "data" {
      type            = "csi"
      source          = "web"
      access_mode     = "multi-node-multi-writer"
      attachment_mode = "file-system"
    }

    task "web" {
      driver = "docker"

      config {
        image = "busybox:1.37.0"
        args  = ["httpd", "-f", "-h", "/data"]
      }

      volume_mount {
        volume      = "data"
        destination = "/data"
      }
    }
  }
}
