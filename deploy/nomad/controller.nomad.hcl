# The controller: one, anywhere. `nomad job run deploy/nomad/controller.nomad.hcl`
variable "image" {
  type        = string
  description = "An image that the clients can pull, or have loaded"
  default     = "localhost/omnibus-csi:0.1.0"
}

variable "datacenters" {
  type    = list(string)
  default = ["dc1"]
}

job "omnibus-csi-controller" {
  datacenters = var.datacenters
  type        = "service"

  group "controller" {
    count = 1

    task "controller" {
      driver       = "docker"
      # Longer than the program takes to end: it waits 25 s for calls, and then unmounts. A client of Nomad makes no more
      # of it than its max_kill_timeout, 30s unless configured.
      kill_timeout = "45s"

      config {
        image = var.image
        args = [
          "--csi-name=org.example.csi",
          "--csi-version=1.5.0",
          "--csi-mode=controller",
          "--driver-config-file=${NOMAD_SECRETS_DIR}/driver.yaml",
          "--server-socket=/csi/csi.sock",
          "--log-level=info",
        ]
      }

      # Each connection is a variable below nomad/jobs/omnibus-csi-controller, with the key `config`:
      #   nomad var put nomad/jobs/omnibus-csi-controller/connections/fast-1 config=@fast-1.yaml
      # A change is read without a restart. A name with a dot or a dash is the same as anywhere else.
      template {
        destination = "${NOMAD_SECRETS_DIR}/driver.yaml"
        change_mode = "restart"
        data        = <<-END
          driver: proxy
          proxy:
            configFolder: {{ env "NOMAD_SECRETS_DIR" }}/connections
        END
      }

      # One block for each connection.
      template {
        destination = "${NOMAD_SECRETS_DIR}/connections/fast-1.yaml"
        change_mode = "noop"
        perms       = "0600"
        data        = <<-END
          {{ with nomadVar "nomad/jobs/omnibus-csi-controller/connections/fast-1" }}{{ .config }}{{ end }}
        END
      }

      csi_plugin {
        id        = "org.example.csi"
        type      = "controller"
        mount_dir = "/csi"
      }

      resources {
        cpu    = 100
        # As in the chart: 1024 where a connection makes snapshots with restic or kopia, which run in here, too.
        memory = 256
      }
    }
  }
}
