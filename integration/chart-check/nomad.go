package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// printNomad parses a file for Nomad and prints what its tasks have, a line each: `image NAME`, `kill-timeout SECONDS`,
// `memory MIB`, `mount-dir FOLDER`, `stage-dir FOLDER`, `plugin ID`, `argument TEXT`. What Nomad itself
// would say of the file, nothing here knows.
func printNomad(path string, out io.Writer) error {
	source, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	file, said := hclsyntax.ParseConfig(source, path, hcl.InitialPos)
	if said.HasErrors() {
		return said
	}
	reader := nomadReader{out: out, known: &hcl.EvalContext{Variables: map[string]cty.Value{
		"NOMAD_TASK_DIR":    cty.StringVal("/local"),
		"NOMAD_SECRETS_DIR": cty.StringVal("/secrets"),
		"attr":              cty.ObjectVal(map[string]cty.Value{"unique": cty.ObjectVal(map[string]cty.Value{"hostname": cty.StringVal("node-1")})}),
	}}}
	body := file.Body.(*hclsyntax.Body)
	defaults := map[string]cty.Value{}
	for _, block := range body.Blocks {
		if block.Type == "variable" {
			if fallback, ok := block.Body.Attributes["default"]; ok {
				value, said := fallback.Expr.Value(reader.known)
				if said.HasErrors() {
					return said
				}
				defaults[block.Labels[0]] = value
			}
		}
	}
	reader.known.Variables["var"] = cty.ObjectVal(defaults)
	return reader.read(body, "")
}

type nomadReader struct {
	out   io.Writer
	known *hcl.EvalContext
}

// read evaluates everything below a body, so that a variable that does not exist is an error.
func (r nomadReader) read(body *hclsyntax.Body, kind string) error {
	for name, attribute := range body.Attributes {
		if kind == "variable" {
			// A type is no value.
			continue
		}
		value, said := attribute.Expr.Value(r.known)
		if said.HasErrors() {
			return said
		}
		if err := r.print(kind, name, value); err != nil {
			return err
		}
	}
	for _, block := range body.Blocks {
		if err := r.read(block.Body, block.Type); err != nil {
			return err
		}
	}
	return nil
}

func (r nomadReader) print(kind, name string, value cty.Value) error {
	switch kind + "." + name {
	case "config.image":
		fmt.Fprintln(r.out, "image", value.AsString())
	case "config.args":
		for _, argument := range value.AsValueSlice() {
			fmt.Fprintln(r.out, "argument", argument.AsString())
		}
	case "resources.memory":
		fmt.Fprintln(r.out, "memory", value.AsBigFloat().Text('f', -1))
	case "csi_plugin.mount_dir":
		fmt.Fprintln(r.out, "mount-dir", value.AsString())
	case "csi_plugin.stage_publish_base_dir":
		fmt.Fprintln(r.out, "stage-dir", value.AsString())
	case "csi_plugin.id", ".plugin_id":
		fmt.Fprintln(r.out, "plugin", value.AsString())
	case "task.kill_timeout":
		time, err := time.ParseDuration(value.AsString())
		if err != nil {
			return err
		}
		fmt.Fprintln(r.out, "kill-timeout", int(time.Seconds()))
	}
	return nil
}
