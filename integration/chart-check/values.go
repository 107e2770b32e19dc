package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"

	"sigs.k8s.io/yaml"
)

// The part of JSON Schema that values.schema.json is written in.
type schema struct {
	Description          string             `json:"description"`
	Type                 any                `json:"type"`
	Enum                 []any              `json:"enum"`
	Properties           map[string]*schema `json:"properties"`
	Items                *schema            `json:"items"`
	AdditionalProperties any                `json:"additionalProperties"`
}

const head = `# Values of the chart

Every value of the Helm chart. How to use them: [install](install.md). This page is generated from
deploy/chart/values.schema.json by scripts/chart-values; a test compares them.

| value | type | default | |
|---|---|---|---|
`

func writeValues(schemaFile, valuesFile string, out io.Writer) error {
	var root schema
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &root); err != nil {
		return fmt.Errorf("%s: %w", schemaFile, err)
	}
	text, err = os.ReadFile(valuesFile)
	if err != nil {
		return err
	}
	var values map[string]any
	if err := yaml.UnmarshalStrict(text, &values); err != nil {
		return fmt.Errorf("%s: %w", valuesFile, err)
	}
	table := &table{}
	table.object("", &root, values)
	if _, err := io.WriteString(out, head+strings.Join(table.rows, "")); err != nil {
		return err
	}
	return errors.Join(table.problems...)
}

type table struct {
	rows     []string
	problems []error
}

func (t *table) object(prefix string, schema *schema, values map[string]any) {
	for key := range values {
		if schema.Properties[key] == nil {
			t.problems = append(t.problems, fmt.Errorf("%s%s: in values.yaml, not in the schema", prefix, key))
		}
	}
	keys := make([]string, 0, len(schema.Properties))
	for key := range schema.Properties {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	for _, key := range keys {
		property, path := schema.Properties[key], prefix+key
		value, there := values[key]
		inner, isMap := value.(map[string]any)
		switch {
		case len(property.Properties) > 0 && (isMap || !there):
			t.object(path+".", property, inner)
		default:
			t.row(path, property, value)
			if property.Items != nil && property.Items.Properties != nil {
				t.object(path+"[].", property.Items, nil)
			}
		}
	}
}

func (t *table) row(path string, schema *schema, value any) {
	if schema.Description == "" {
		t.problems = append(t.problems, fmt.Errorf("%s: no description", path))
	}
	// Ignored values are there for old files, and have no default.
	shown := ""
	if value != nil {
		text, err := json.Marshal(value)
		if err != nil {
			t.problems = append(t.problems, fmt.Errorf("%s: %w", path, err))
		}
		shown = "`" + string(text) + "`"
	}
	t.rows = append(t.rows, fmt.Sprintf("| `%s` | %s | %s | %s |\n", path, kind(schema), shown, strings.ReplaceAll(schema.Description, "|", "\\|")))
}

func kind(schema *schema) string {
	if len(schema.Enum) > 0 {
		var words []string
		for _, word := range schema.Enum {
			if word != "" {
				words = append(words, fmt.Sprintf("`%v`", word))
			}
		}
		return strings.Join(words, ", ")
	}
	switch kind := schema.Type.(type) {
	case string:
		return plain(kind)
	case []any:
		var words []string
		for _, word := range kind {
			if word != "null" {
				words = append(words, plain(fmt.Sprint(word)))
			}
		}
		return strings.Join(words, " or ")
	}
	return ""
}

func plain(kind string) string {
	switch kind {
	case "object":
		return "map"
	case "array":
		return "list"
	case "string":
		return "text"
	case "integer":
		return "number"
	}
	return kind
}
