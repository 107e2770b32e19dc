# The node plugin: one on each client. The clients have to allow privileged containers
# (plugin "docker" { config { allow_privileged = true } }).
variable "image" {
  type    = string
  default = "localhost/omnibus-csi:0.1.0"
}

variable "datacenters" {
  type    = list(string)
  default = ["dc1"]
}

job "omnibus-csi-node" {
  datacenters = var.datacenters
  type        = "system"

  group "node" {
    task "node" {
      driver       = "docker"
      kill_timeout = "45s"

      env {
        CSI_NODE_ID = "${attr.unique.hostname}"
      }

      config {
        image        = var.image
        privileged   = true
        network_mode = "host"
        ipc_mode     = "host"
        args = [
          "--csi-name=org.example.csi",
          "--csi-version=1.5.0",
          "--csi-mode=node",
          "--driver-config-file=${NOMAD_TASK_DIR}/driver.yaml",
          "--server-socket=/csi/csi.sock",
          "--log-level=info",
        ]

        # The host's tools, and what they mount.
        mount {
          type     = "bind"
          source   = "/"
          target   = "/host"
          readonly = false
          bind_options {
            propagation = "rshared"
          }
        }

        mount {
          type     = "bind"
          source   = "/dev"
          target   = "/dev"
          readonly = false
        }

        mount {
          type     = "bind"
          source   = "/run/udev"
          target   = "/run/udev"
          readonly = true
        }

        mount {
          type     = "bind"
          source   = "/lib/modules"
          target   = "/lib/modules"
          readonly = true
        }
      }

      # Nodes know no connection.
      template {
        destination = "${NOMAD_TASK_DIR}/driver.yaml"
        data        = <<-END
          driver: proxy
          proxy:
            configFolder: /connections
        END
      }

      csi_plugin {
        id        = "org.example.csi"
        type      = "node"
        mount_dir = "/csi"
      }

      resources {
        cpu    = 100
        memory = 256
      }
    }
  }
}
